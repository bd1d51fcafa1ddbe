"""The first page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.rendering import page

router = APIRouter(prefix="/console/overview")


@router.get("")
def show(request: Request, viewer: AnyViewer) -> Response:
    """Load, service, refusals, alarms."""
    return page(request, viewer, "overview")
