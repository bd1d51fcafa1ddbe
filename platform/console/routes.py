"""Routes of all pages of the console."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console import static_files
from fairserve.platform.console.navigation import page_modules
from fairserve.platform.console.oidc import sign_in as oidc_sign_in
from fairserve.platform.console.sign_in import with_key
from fairserve.platform.console.sign_in.steps import HOME

PARTS = (with_key, oidc_sign_in, static_files, *page_modules())

router = APIRouter()


@router.get("/")
def root() -> Response:
    """Redirect to the console."""
    return RedirectResponse(HOME, status_code=303)


def console_routes() -> list[APIRoute]:
    """Return the routes of all pages; the description of the API has none of them."""
    routers = [router, *(part.router for part in PARTS)]
    routes = [each for one in routers for each in one.routes if isinstance(each, APIRoute)]
    for route in routes:
        route.include_in_schema = False
    return routes
