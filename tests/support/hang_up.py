"""The end of a scripted answer whose client has hung up."""

from aiohttp import web


@web.middleware
async def ends_quietly(request, handler):
    """End the answer without a traceback when its client has hung up."""
    try:
        return await handler(request)
    except ConnectionError:
        return web.Response()
