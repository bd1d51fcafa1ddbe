"""Service behind the endpoints of exports: request, list, download, delete.

A request that cannot succeed is rejected at once if that can be checked. Methods use the session of
the HTTP request and do not commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, GoneError, NotFoundError, RateLimitedError
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.rows import changed, count, read_page
from fairserve.platform.db.schemas import Paging, view_of
from fairserve.platform.reporting.exports import repository
from fairserve.platform.reporting.exports.repository import ExportViewer
from fairserve.platform.reporting.exports.schemas import ExportOut, ExportPage, ExportRequest
from fairserve.platform.reporting.usage import reports
from fairserve.platform.reporting.usage.formats import require_extras
from fairserve.platform.tenancy.auth import Principal

MAX_UNFINISHED = 20
"""Queued and running exports of one tenant; further requests get 429."""
MAX_LISTED = 1_000
"""Maximum number of exports of a tenant, including failed and expired ones until their deletion."""
_RETRY_AFTER_S = 60


class Exports:
    """The exports that one request may access."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        viewer: ExportViewer,
    ) -> None:
        self._session = session
        self._principal = principal
        self._viewer = viewer

    def create(self, query: ExportRequest, *, app_id: str | None) -> ReportExport:
        """Queue an export, of an app that the viewer may read.

        Raises InvalidRequestError for an impossible query, and RateLimitedError at a storage limit.
        """
        viewer = self._viewer
        tenant_id = query.tenant if viewer.asks_as == "operator" else viewer.tenant_id
        require_extras(query.format)
        reports.check(self._session, query, tenant_id=tenant_id)
        self._check_capacity()
        export = ReportExport(
            id=new_id("exp"),
            asked_by=viewer.asks_as,
            tenant_id=tenant_id,
            app_id=app_id,
            user_id=query.user,
            names_users=_names_users(query),
            kind=query.kind,
            format=query.format,
            query=query.model_dump(
                mode="json",
                by_alias=True,
                exclude={"kind", "format", "user"},
                exclude_unset=True,
            ),
            state="queued",
            attempt=0,
            lost=0,
            size_bytes=0,
            error="",
            created_at=utc_now(),
        )
        self._session.add(export)
        self._audit("export.create", export)
        return export

    def page(self, tenant_id: str | None, paging: Paging) -> ExportPage:
        """Return a page of the exports, newest first."""
        rows, total = read_page(self._session, repository.listed(self._viewer, tenant_id), paging)
        return ExportPage.of([describe(export) for export in rows], total, paging)

    def get(self, export_id: str, *, lock: bool = False) -> ReportExport:
        """Return one export. Raises NotFoundError, also for another owner's export."""
        export = repository.get(self._session, self._viewer, export_id, lock=lock)
        if export is None:
            raise NotFoundError("there is no such export", param="export_id")
        return export

    def finished(self, export_id: str) -> ReportExport:
        """Return an export whose file is ready. Raises ConflictError, and GoneError after its expiry."""
        export = self.get(export_id)
        shown = describe(export)
        if shown.state == "expired":
            raise GoneError("the export has expired; request a new one", code="expired")
        if shown.state != "ready":
            why = f": {shown.error}" if shown.error else ""
            raise ConflictError(
                f"the export is {shown.state}{why}; its file can be downloaded once it is ready",
                code="not_ready",
                details={"state": shown.state},
            )
        return export

    def delete(self, export_id: str) -> None:
        """Delete an export with its file; cancel a queued or running one."""
        export = self.get(export_id, lock=True)
        changed(self._session, delete(ReportExport).where(ReportExport.id == export.id))
        self._audit("export.delete", export)

    def _check_capacity(self) -> None:
        viewer = self._viewer
        if viewer.asks_as != "operator":
            locked = select(Tenant.id).where(Tenant.id == viewer.tenant_id)
            if self._session.scalar(locked.with_for_update(key_share=True)) is None:
                raise NotFoundError("there is no such tenant", param="tenant")
        own = viewer.shares_bounds()
        listed = select(ReportExport).where(*own)
        waiting = listed.where(ReportExport.state.in_(repository.UNFINISHED))
        if count(self._session, waiting) >= MAX_UNFINISHED:
            raise _too_many(
                f"{MAX_UNFINISHED} exports are queued or running, which is the limit;"
                " wait for one of them, or delete one"
            )
        if count(self._session, listed) >= MAX_LISTED:
            raise _too_many(f"the limit of {MAX_LISTED} exports is reached; delete some")
        kept = repository.kept_bytes(self._session, own)
        allowed = repository.allowed_bytes(self._session, kept)
        if kept >= allowed:
            raise _too_many(
                f"the stored files have {kept:,} bytes, and {allowed:,} are allowed now;"
                " delete some exports, or retry later"
            )

    def _audit(self, action: str, export: ReportExport) -> None:
        # The user is omitted: an erasure does not search these entries.
        values: dict[str, Any] = {
            "kind": export.kind,
            "format": export.format,
            "app": export.app_id,
            "names_users": export.names_users,
        }
        before, after = (values, None) if action == "export.delete" else (None, values)
        audit.record(
            self._session,
            self._principal,
            action,
            export.id,
            tenant_id=export.tenant_id,
            before=before,
            after=after,
        )


def describe(export: ReportExport, now: datetime | None = None) -> ExportOut:
    """Return the API's view of an export; ``now`` defaults to the current time."""
    over = repository.is_over(export, utc_now() if now is None else now)
    state = "expired" if over else export.state
    finished = state in ("ready", "expired")
    return view_of(
        ExportOut,
        export,
        object="usage.export",
        state=state,
        size_bytes=export.size_bytes if state == "ready" else None,
        sha256=export.sha256 if finished else None,
        error=export.error or None,
    )


def _names_users(query: ExportRequest) -> bool:
    # An HTML page without groups shows bars by user.
    shown = query.kind == "interactions" or query.format == "html" or "user" in query.group_by
    return shown or query.user is not None


def _too_many(message: str) -> RateLimitedError:
    return RateLimitedError(
        message, code="too_many_exports", headers={"Retry-After": str(_RETRY_AFTER_S)}
    )
