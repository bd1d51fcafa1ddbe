"""The status line alone, for pages without an event stream and for browsers that lost theirs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.rendering import page

router = APIRouter(prefix="/console/status")


@router.get("")
def show(request: Request, viewer: AnyViewer) -> Response:
    """Return the status line."""
    return page(request, viewer, "status_line")
