"""Router of all pages of the console."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console import static_files
from fairserve.platform.console.navigation import page_modules
from fairserve.platform.console.oidc import sign_in as oidc_sign_in
from fairserve.platform.console.sign_in import with_key
from fairserve.platform.console.sign_in.steps import HOME

PARTS = (with_key, oidc_sign_in, static_files, *page_modules())

router = APIRouter(include_in_schema=False)


@router.get("/")
def root() -> Response:
    """Redirect to the console."""
    return RedirectResponse(HOME, status_code=303)


for part in PARTS:
    router.include_router(part.router)
