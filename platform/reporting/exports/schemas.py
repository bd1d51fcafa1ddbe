"""Requests and responses of ``/v1/usage/exports``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator

from fairserve.platform.db.schemas import FieldError, Page
from fairserve.platform.reporting.usage.schemas import InteractionState, UsageRequest

ExportKind = Literal["usage", "interactions"]
ExportState = Literal["queued", "running", "ready", "failed", "expired"]


class ExportRequest(UsageRequest):
    """Request of a report, or with ``kind=interactions`` of all interactions that match."""

    kind: ExportKind = "usage"
    state: InteractionState | None = None
    """State of the interactions; their formats are JSON lines, CSV and Parquet."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "usage":
            if self.state is not None:
                raise FieldError("state", "state is allowed only with kind=interactions")
            return self
        if self.format == "html":
            raise FieldError("format", "the format of interactions must be json, csv or parquet")
        given = self.model_fields_set & {"group_by", "model", "limit", "offset"}
        if given:
            name = min(given)
            raise FieldError(name, f"{name} is not allowed with kind=interactions")
        return self


class ExportOut(BaseModel):
    """An export. Unknown values are null."""

    object: str = "usage.export"
    id: str
    kind: ExportKind
    format: str
    asked_by: Literal["app", "tenant", "operator"]
    tenant: str | None
    """Tenant that the report covers; null for all tenants."""
    app: str | None
    user: str | None
    query: dict[str, Any]
    """The other parameters of the request, unchanged."""
    state: ExportState
    progress: float | None
    """Fraction done, from 0 to 1."""
    size_bytes: int | None
    sha256: str | None
    error: str | None
    """Reason of the failure."""
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    """Time until which the file can be downloaded."""


class ExportPage(Page[ExportOut]):
    """A page of exports, newest first."""
