"""Router of all pages of the console."""

from __future__ import annotations

from fastapi import APIRouter

from fairserve.platform.console import sign_in, static_files
from fairserve.platform.console.navigation import page_modules
from fairserve.platform.console.oidc import sign_in as oidc_sign_in

PARTS = (sign_in, oidc_sign_in, static_files, *page_modules())

router = APIRouter(include_in_schema=False)
for part in PARTS:
    router.include_router(part.router)
