"""Batches in the API, in OpenAI's shape."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StringConstraints

from fairserve.platform.base.validation import at_most
from fairserve.platform.db.batches import Batch
from fairserve.platform.db.schemas import ObjectId, Strict
from fairserve.platform.serving.files.schemas import ExpirySeconds, OpenAIList

BatchState = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
MAX_LABELS = 16
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
LabelText = Annotated[str, StringConstraints(max_length=512)]


class OutputExpiry(Strict):
    """Time for which the output files are kept, from their creation."""

    anchor: Literal["created_at"]
    seconds: ExpirySeconds


class BatchCreate(Strict):
    """A request for a batch. ``completion_window`` is 1h to 168h."""

    input_file_id: ObjectId
    endpoint: Annotated[str, StringConstraints(max_length=64)]
    completion_window: Annotated[
        str, StringConstraints(pattern=r"^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$")
    ]
    metadata: (
        Annotated[dict[LabelName, LabelText], Field(max_length=MAX_LABELS), at_most(MAX_LABELS)]
        | None
    ) = None
    output_expires_after: OutputExpiry | None = None


class BatchError(BaseModel):
    """An error of the input file, or the reason why the batch failed."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    """The errors of a batch, at most 100."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """Numbers of lines."""

    total: int
    completed: int
    failed: int


class BatchOut(BaseModel):
    """A batch. Times are UTC epoch seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the API's view of a batch."""
        errors = None if batch.errors is None else BatchErrors(data=_errors(batch.errors))
        ended: dict[str, Any] = {
            f"{state}_at": _seconds(batch.ended_at) if batch.state == state else None
            for state in ("completed", "failed", "expired", "cancelled")
        }
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            errors=errors,
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.state,  # the column holds nothing else
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=int(batch.created_at.timestamp()),
            in_progress_at=_seconds(batch.in_progress_at),
            expires_at=int(batch.expires_at.timestamp()),
            finalizing_at=_seconds(batch.finalizing_at),
            cancelling_at=_seconds(batch.cancelling_at),
            request_counts=RequestCounts(
                total=batch.total, completed=batch.completed, failed=batch.failed
            ),
            metadata=batch.labels,
            **ended,
        )


class BatchList(OpenAIList[BatchOut]):
    """A page of batches. ``last_id`` is the ``after`` of the next page."""


class BatchQuery(Strict):
    """The requested page of batches, newest first."""

    after: ObjectId | None = None
    limit: int = Field(20, ge=1, le=100)


def _errors(plain: list[dict[str, Any]]) -> list[BatchError]:
    return [BatchError.model_validate(each) for each in plain]


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
