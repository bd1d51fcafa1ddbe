"""Router of all pages of the console."""

from __future__ import annotations

from fastapi import APIRouter

from fairserve.platform.console import sign_in, static_files
from fairserve.platform.console.oidc import sign_in as oidc_sign_in
from fairserve.platform.console.pages import (
    admin_keys,
    apps,
    audit,
    client,
    clients,
    cluster,
    interactions,
    overview,
    refusals,
    run,
    tenants,
    throttling,
    usage,
)

PARTS = (
    sign_in,
    oidc_sign_in,
    static_files,
    overview,
    throttling,
    refusals,
    clients,
    tenants,
    apps,
    client,
    interactions,
    run,
    usage,
    cluster,
    admin_keys,
    audit,
)

router = APIRouter(include_in_schema=False)
for part in PARTS:
    router.include_router(part.router)
