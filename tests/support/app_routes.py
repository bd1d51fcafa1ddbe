"""The routes of an application, with those of the routers that it includes."""

from fastapi.routing import APIRoute


def api_routes(router):
    """Yield all routes of an application or router that have an endpoint of the API."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from api_routes(inner)
        elif isinstance(route, APIRoute):
            yield route
