"""``/v1/files``, for app keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from fairserve.platform.serving.files.multipart import boundary_of
from fairserve.platform.serving.files.repository import FileOwner
from fairserve.platform.serving.files.schemas import FileDeleted, FileList, FileOut, FileQuery
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.tenancy.auth import Principal

router = APIRouter(prefix="/v1/files", tags=["batches"])

_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "file": {"type": "string", "format": "binary"},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer"},
                    },
                }
            }
        },
    }
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}


@router.post("", openapi_extra=_UPLOAD)
async def upload_file(request: Request, principal: AppPrincipal) -> FileOut:
    """Upload a file of calls, one a line, for a batch."""
    boundary = boundary_of(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    size_bytes = int(declared) if declared.isdigit() else None
    file = await _files(request).upload(owner_of(principal), request.stream(), boundary, size_bytes)
    return FileOut.of(file)


@router.get("")
async def list_files(
    request: Request, principal: AppPrincipal, query: Annotated[FileQuery, Query()]
) -> FileList:
    """List the app's files, newest first by default."""
    files, has_more = await _files(request).page(owner_of(principal), query)
    return FileList.of([FileOut.of(file) for file in files], has_more)


@router.get("/{file_id}")
async def read_file(file_id: str, request: Request, principal: AppPrincipal) -> FileOut:
    """Return one file without its content."""
    return FileOut.of(await _files(request).find(owner_of(principal), file_id))


@router.get("/{file_id}/content", response_class=StreamingResponse, responses=_CONTENT)
async def read_file_content(file_id: str, request: Request, principal: AppPrincipal) -> Response:
    """Return the content of a file."""
    files = _files(request)
    file = await files.find(owner_of(principal), file_id)
    headers = {
        "Content-Length": str(file.size_bytes),
        "Cache-Control": "private, no-cache",
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
    }
    # The file is read piece by piece in threads: a slow client holds no lock.
    return StreamingResponse(
        files.content(file.id), media_type="application/octet-stream", headers=headers
    )


@router.delete("/{file_id}")
async def delete_file(file_id: str, request: Request, principal: AppPrincipal) -> FileDeleted:
    """Delete a file that no batch in progress reads."""
    await _files(request).delete(owner_of(principal), file_id)
    return FileDeleted(id=file_id)


def owner_of(principal: Principal) -> FileOwner:
    """Return the owner of the files and batches that a key's app makes."""
    return FileOwner(principal.tenant_id or "", principal.app_id or "")


def _files(request: Request) -> Files:
    files: Files = request.app.state.files
    return files
