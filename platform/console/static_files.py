"""Serve styles, scripts and libraries without authentication; their contents are public."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.assets import assets
from fairserve.platform.console.guard import not_there

router = APIRouter(prefix="/console/static")

IMMUTABLE = "public, max-age=31536000, immutable"


@router.get("/{version}/{name:path}")
def read_asset(version: str, name: str, request: Request) -> Response:
    """Return a file; other versions than the requested one are cached only briefly."""
    asset = assets().get(name)
    if asset is None:
        raise not_there(request)
    kept = IMMUTABLE if version == asset.version else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"Cache-Control": kept})
