"""All pages of the console."""

from __future__ import annotations

from fastapi import APIRouter

from fairserve.platform.console import sign_in, static_files
from fairserve.platform.console.pages import (
    audit,
    cluster,
    interactions,
    overview,
    refusals,
    run,
    usage,
)

router = APIRouter(include_in_schema=False)
for part in (sign_in, static_files, overview, audit, usage, refusals, interactions, run, cluster):
    router.include_router(part.router)
