"""``/v1/usage/exports`` for apps and tenants, ``/admin/usage/exports`` for operators.

An export is requested like a report, computed in the background, and downloaded when it is ready.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response, status
from fastapi.responses import StreamingResponse

from fairserve.platform.db.schemas import TenantPaging, TenantQuery
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.reporting.exports import repository
from fairserve.platform.reporting.exports.content import file_name, media_type
from fairserve.platform.reporting.exports.repository import ExportViewer
from fairserve.platform.reporting.exports.schemas import ExportOut, ExportPage, ExportRequest
from fairserve.platform.reporting.exports.service import Exports, describe
from fairserve.platform.reporting.usage.reports import reject_tenant_groups
from fairserve.platform.tenancy.principals import AdminPrincipal
from fairserve.platform.tenancy.readers import Reader, asked_app

router = APIRouter()

Named = Annotated[TenantQuery, Query()]
Paged = Annotated[TenantPaging, Query()]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}


def _exports(session: WriteSession, principal: Reader) -> Exports:
    asks_as: Any = "app" if principal.scope == "app" else "tenant"
    viewer = ExportViewer(asks_as, principal.tenant_id, principal.app_id)
    return Exports(session, principal, viewer)


def _exports_to_read(session: ReadSession, principal: Reader) -> Exports:
    return _exports(session, principal)


def _all(session: WriteSession, principal: AdminPrincipal) -> Exports:
    return Exports(session, principal, ExportViewer("operator"))


def _all_to_read(session: ReadSession, principal: AdminPrincipal) -> Exports:
    return _all(session, principal)


Writable = Annotated[Exports, Depends(_exports, scope="function")]
Readable = Annotated[Exports, Depends(_exports_to_read, scope="function")]
AllWritable = Annotated[Exports, Depends(_all, scope="function")]
AllReadable = Annotated[Exports, Depends(_all_to_read, scope="function")]


@router.post("/v1/usage/exports", status_code=status.HTTP_202_ACCEPTED)
def create_export(
    exports: Writable,
    session: WriteSession,
    principal: Reader,
    response: Response,
    query: Annotated[ExportRequest, Query()],
) -> ExportOut:
    """Request a report, or all interactions, as a file."""
    reject_tenant_groups(query)
    export = exports.create(query, app_id=asked_app(session, principal, query))
    named = f"?tenant={principal.tenant_id}" if principal.scope == "admin" else ""
    response.headers["Location"] = f"/v1/usage/exports/{export.id}{named}"
    return describe(export)


@router.get("/v1/usage/exports")
def list_exports(exports: Readable, query: Paged) -> ExportPage:
    """List the exports of an app, or of a tenant and its apps, newest first."""
    return exports.page(None, query)


@router.get("/v1/usage/exports/{export_id}")
def read_export(export_id: str, exports: Readable, _: Named) -> ExportOut:
    """Return the state of an export."""
    return describe(exports.get(export_id))


@router.get("/v1/usage/exports/{export_id}/file", response_class=StreamingResponse, responses=_FILE)
def download_export(export_id: str, request: Request, exports: Readable, _: Named) -> Response:
    """Download the file of a finished export."""
    return _file(export_id, request, exports)


@router.delete("/v1/usage/exports/{export_id}", status_code=status.HTTP_204_NO_CONTENT)
def delete_export(export_id: str, exports: Writable, _: Named) -> None:
    """Delete an export with its file, or cancel it."""
    exports.delete(export_id)


@router.post("/admin/usage/exports", status_code=status.HTTP_202_ACCEPTED)
def create_any_export(
    exports: AllWritable, response: Response, query: Annotated[ExportRequest, Query()]
) -> ExportOut:
    """Request a report on all tenants, or on one, as a file."""
    export = exports.create(query, app_id=query.app)
    response.headers["Location"] = f"/admin/usage/exports/{export.id}"
    return describe(export)


@router.get("/admin/usage/exports")
def list_all_exports(exports: AllReadable, query: Paged) -> ExportPage:
    """List the exports of all tenants, or those of one tenant's usage, newest first."""
    return exports.page(query.tenant, query)


@router.get("/admin/usage/exports/{export_id}")
def read_any_export(export_id: str, exports: AllReadable) -> ExportOut:
    """Return the state of an export."""
    return describe(exports.get(export_id))


@router.get(
    "/admin/usage/exports/{export_id}/file", response_class=StreamingResponse, responses=_FILE
)
def download_any_export(export_id: str, request: Request, exports: AllReadable) -> Response:
    """Download the file of a finished export."""
    return _file(export_id, request, exports)


@router.delete("/admin/usage/exports/{export_id}", status_code=status.HTTP_204_NO_CONTENT)
def delete_any_export(export_id: str, exports: AllWritable) -> None:
    """Delete an export with its file, or cancel it."""
    exports.delete(export_id)


def _file(export_id: str, request: Request, exports: Exports) -> Response:
    export = exports.finished(export_id)
    headers = {
        "ETag": f'"{export.sha256}"',
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    headers["Content-Length"] = str(export.size_bytes)
    headers["Content-Disposition"] = f'attachment; filename="{file_name(export)}"'
    # Each part is read in its own transaction: a slow client holds no lock.
    parts = repository.parts(
        request.app.state.session_factory, export.id, export.attempt, export.size_bytes
    )
    return StreamingResponse(parts, media_type=media_type(export), headers=headers)
