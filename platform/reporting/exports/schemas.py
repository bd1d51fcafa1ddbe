"""Requests and answers of ``/v1/usage/exports``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator

from fairserve.platform.db.schemas import FieldError, Page
from fairserve.platform.reporting.usage.schemas import InteractionState, UsageRequest

ExportKind = Literal["usage", "interactions"]
ExportState = Literal["queued", "running", "ready", "failed", "expired"]


class ExportRequest(UsageRequest):
    """A report, or with ``kind=interactions`` all single interactions of its days and filters."""

    kind: ExportKind = "usage"
    state: InteractionState | None = None
    """State of the interactions; they are exported as JSON lines, CSV or Parquet."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "usage":
            if self.state is not None:
                raise FieldError("state", "state is for kind=interactions")
            return self
        if self.format == "html":
            raise FieldError("format", "interactions are exported as json, csv or parquet")
        given = self.model_fields_set & {"group_by", "model", "limit", "offset"}
        if given:
            name = min(given)
            raise FieldError(name, f"{name} is not for kind=interactions, which lists all of them")
        return self


class ExportOut(BaseModel):
    """An export. Values that are not known yet are null."""

    object: str = "usage.export"
    id: str
    kind: ExportKind
    format: str
    asked_by: Literal["app", "tenant", "operator"]
    tenant: str | None
    """Tenant whose usage it holds; null: all tenants."""
    app: str | None
    user: str | None
    query: dict[str, Any]
    """Other parameters of the request, as given."""
    state: ExportState
    progress: float | None
    """Share of the work that is done, between 0 and 1."""
    size_bytes: int | None
    sha256: str | None
    error: str | None
    """Reason of a failure."""
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    """Time until which the file can be downloaded."""


class ExportPage(Page[ExportOut]):
    """A page of exports, newest first."""
