"""Serves styles, scripts and libraries, to anybody: there is nothing in them that is not public."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.assets import assets
from fairserve.platform.console.guard import not_there

router = APIRouter(prefix="/console/static")

FOR_EVER = "public, max-age=31536000, immutable"


@router.get("/{version}/{name:path}")
def read_asset(version: str, name: str, request: Request) -> Response:
    """A file in the version that a page asked for; one of another version is not kept for long."""
    asset = assets().get(name)
    if asset is None:
        raise not_there(request)
    kept = FOR_EVER if version == asset.version else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"Cache-Control": kept})
