"""Pages of webhooks, for operators: failed deliveries of all tenants, and the webhooks of a tenant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.background.webhooks.event_types import TYPES
from fairserve.platform.background.webhooks.schemas import (
    DeadQuery,
    DeliveriesQuery,
    WebhookCreate,
    WebhookPatch,
)
from fairserve.platform.background.webhooks.service import Webhooks, dead_deliveries
from fairserve.platform.background.webhooks.url_checks import check_url
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.console import forms
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.lists import asked, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.names import names_of
from fairserve.platform.db.schemas import MAX_PAGE, Paging
from fairserve.platform.db.session import ReadSession, read_session
from fairserve.platform.tenancy.auth import Principal

PAGE = ConsolePage("webhooks", "Webhooks", 83, "h", only_admin=True, within="settings")
router = APIRouter(prefix=PAGE.path)

NEW = "webhook."
"""Beginning of the fields' names in the form of a new webhook."""
LAST_DELIVERIES = 5
"""Deliveries shown of each webhook."""
ACTIONS: Mapping[str, Callable[[Webhooks, str], object]] = {
    "test": Webhooks.test,
    "replay": Webhooks.replay_dead,
    "enable": lambda webhooks, which: webhooks.change(which, WebhookPatch(enabled=True)),
    "disable": lambda webhooks, which: webhooks.change(which, WebhookPatch(enabled=False)),
    "delete": Webhooks.delete,
}
"""Actions on a webhook that need no entries."""


def _owner(tenant_id: str, viewer: AdminViewer) -> Principal:
    """Return the operator's principal within a tenant."""
    return replace(acting_for(viewer), tenant_id=tenant_id)


Owner = Annotated[Principal, Depends(_owner)]


@router.get("")
def show_dead(request: Request, viewer: AdminViewer, session: ReadSession) -> Response:
    """Show the failed deliveries of all tenants."""
    found = dead_deliveries(session, asked(request, DeadQuery))
    return page(
        request,
        viewer,
        "webhooks_dead",
        dead=found.items,
        names=names_of(session, tenants={each.tenant_id for each in found.items}),
        part=part_of(found),
        place=place(request),
    )


@router.get("/{tenant_id}")
def show(request: Request, viewer: AdminViewer, owner: Owner) -> Response:
    """Show the webhooks of a tenant with their last deliveries."""
    return _page(request, viewer, owner)


@router.post("/{tenant_id}")
def create(request: Request, viewer: AdminViewer, owner: Owner, form: OwnForm) -> Response:
    """Register a webhook, and show its signing secret, once."""
    body = forms.read(WebhookCreate, _entries(form, NEW), NEW)
    wrong = body if isinstance(body, dict) else _check(request, owner, body.url, form, NEW)
    if isinstance(body, dict) or wrong:
        return _page(request, viewer, owner, given=form, wrong=wrong)
    return _secret(request, viewer, owner, form, lambda webhooks: webhooks.create(body)[1], NEW)


@router.post("/{tenant_id}/{webhook_id}")
def change(
    webhook_id: str, request: Request, viewer: AdminViewer, owner: Owner, form: OwnForm
) -> Response:
    """Change, enable, disable, test or delete a webhook, or send its failed deliveries again."""
    action = form.get("action", "")
    if action == "rotate":
        return _secret(
            request, viewer, owner, form, lambda webhooks: webhooks.rotate(webhook_id)[1]
        )
    if action not in ACTIONS:
        return _save(webhook_id, request, viewer, owner, form)
    act = ACTIONS[action]
    return _apply(
        request,
        viewer,
        owner,
        form,
        lambda webhooks: act(webhooks, webhook_id),
        f"webhook_{action}",
    )


def _save(
    webhook_id: str, request: Request, viewer: Viewer, owner: Principal, form: Mapping[str, str]
) -> Response:
    """Set URL, description and events."""
    prefix = f"{webhook_id}."
    body = forms.read(WebhookPatch, _entries(form, prefix), prefix)
    wrong = body if isinstance(body, dict) else _check(request, owner, body.url or "", form, prefix)
    if isinstance(body, dict) or wrong:
        return _page(request, viewer, owner, given=form, wrong=wrong)
    return _apply(
        request, viewer, owner, form, lambda webhooks: webhooks.change(webhook_id, body), "webhook"
    )


def _apply(
    request: Request,
    viewer: Viewer,
    owner: Principal,
    form: Mapping[str, str],
    act: Callable[[Webhooks], object],
    done: str,
) -> Response:
    """Apply a change of a webhook, or show the page with its errors."""
    wrong = forms.store(request, form, lambda session: act(_webhooks(request, session, owner)))
    if wrong:
        return _page(request, viewer, owner, given=form, wrong=wrong)
    return RedirectResponse(f"{PAGE.path}/{part(owner.tenant_id or '')}?done={done}", 303)


def _entries(form: Mapping[str, str], prefix: str) -> dict[str, object]:
    """Return URL, description and events of a form; each event has a checkbox."""
    return {
        "url": form.get(prefix + "url", ""),
        "description": form.get(prefix + "description", ""),
        "events": [name for name in TYPES if f"{prefix}on.{name}" in form],
    }


def _check(
    request: Request, owner: Principal, url: str, form: Mapping[str, str], prefix: str
) -> forms.Wrong:
    """Return the error of a URL that may not be a target. Looks its host up, so it can be slow."""
    try:
        check_url(request.app.state.settings.background, owner, url)
    except InvalidRequestError as error:
        return forms.refused(error, form, prefix)
    return forms.NOTHING


def _secret(
    request: Request,
    viewer: Viewer,
    owner: Principal,
    form: Mapping[str, str],
    make: Callable[[Webhooks], str],
    prefix: str = "",
) -> Response:
    """Make a signing secret, and show it once."""
    made = forms.make(
        request, form, lambda session: make(_webhooks(request, session, owner)), prefix
    )
    if isinstance(made, dict):
        return _page(request, viewer, owner, given=form, wrong=made)
    return _page(request, viewer, owner, secret=made)


def _webhooks(request: Request, session: Session, owner: Principal) -> Webhooks:
    return Webhooks(session, owner, request.app.state.authenticator.hasher)


def _page(
    request: Request,
    viewer: Viewer,
    owner: Principal,
    *,
    secret: str | None = None,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    tenant_id = owner.tenant_id or ""
    with contextmanager(read_session)(request) as session:
        webhooks = _webhooks(request, session, owner)
        found = webhooks.page(Paging(limit=MAX_PAGE)).items
        last = DeliveriesQuery(limit=LAST_DELIVERIES)
        deliveries = {each.id: webhooks.deliveries(each.id, last) for each in found}
        dead = DeliveriesQuery(limit=1, state="dead")
        failed = {each.id: webhooks.deliveries(each.id, dead).total for each in found}
        names = names_of(session, tenants=(tenant_id,))
    return page(
        request,
        viewer,
        "webhooks",
        status=400 if wrong else 200,
        tenant_id=tenant_id,
        tenant_name=names.get(tenant_id, tenant_id),
        webhooks=found,
        deliveries=deliveries,
        failed=failed,
        types=TYPES,
        secret_text=secret,
        given=given,
        wrong=wrong,
    )
