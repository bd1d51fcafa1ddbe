"""Render pages from templates. Every inserted value is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from fairserve.platform.console import formats
from fairserve.platform.console.assets import asset_url
from fairserve.platform.console.navigation import navigation, rail_of, section_of, tabs_of
from fairserve.platform.console.sessions import Viewer

FOLDER = Path(__file__).parent / "templates"
NOTES: Mapping[str, str] = {
    "throttling": "The settings are in force.",
    "reverted": "The settings of the earlier version are in force, as a new version.",
    "user": "User settings saved; they apply from the next call.",
    "tenant": "Tenant settings saved; they apply from the next call.",
    "app": "App settings saved; they apply from the next call.",
    "limits": "Limits restored; they apply from the next call.",
    "delete": "Deleted; it can be restored.",
    "restore": "Restored; its keys work again.",
    "cancelled": "Run cancelled.",
    "draining": "Worker draining: it finishes its calls and gets no new ones.",
    "undrained": "Worker undrained: it gets new calls.",
    "joining": "Worker added: it serves once it responds.",
    "removed": "Worker removed; the calls that finish first keep it listed as leaving.",
    "alias": "Aliases changed; effective from the next call.",
    "price": "Price set.",
    "price_deleted": "Price deleted.",
    "webhook": "Webhook changed.",
    "webhook_test": "Test event queued; its delivery is below.",
    "webhook_replay": "Failed deliveries queued again.",
    "webhook_enable": "Webhook enabled.",
    "webhook_disable": "Webhook disabled.",
    "webhook_delete": "Webhook deleted.",
    "job": "Job requested; it runs soon.",
    "key_changed": "Key changed.",
    "key_revoked": "Key revoked.",
    "profile": "Profile changed.",
    "export": "Report requested.",
}
"""Notes after changes, by their names in the address."""


def page(
    request: Request, viewer: Viewer | None, template: str, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a page, or the part of it that the template renders."""
    pages = [each for each in navigation() if viewer and (viewer.is_admin or not each.only_admin)]
    text = render(
        template,
        viewer=viewer,
        pages=pages,
        rail=rail_of(pages),
        tabs=tabs_of(pages, request.url.path),
        path=request.url.path,
        is_admin=viewer is not None and viewer.is_admin,
        line=None if viewer is None else request.state.status,
        note=NOTES.get(request.query_params.get("done", "")),
        currency=request.app.state.settings.tenancy.currency,
        **values,
    )
    return HTMLResponse(text, status_code=status, headers={"Cache-Control": "no-store"})


def render(template: str, **values: Any) -> str:
    """Return the text of a template."""
    return _environment().get_template(f"{template}.html.jinja").render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= formats.FILTERS
    environment.filters["json_block"] = _json_block
    environment.globals["asset"] = asset_url
    environment.globals["section_of"] = section_of
    return environment


def _json_block(value: Any) -> Markup:
    """Return JSON for a ``<script type="application/json">``, which it cannot end."""
    text = orjson.dumps(value).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704
