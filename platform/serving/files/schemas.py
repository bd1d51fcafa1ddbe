"""Files in the API, in OpenAI's shape, and the fields of an upload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.batches import File
from fairserve.platform.db.schemas import ObjectId, Strict

MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 30 * 86_400

ExpirySeconds = Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class FileOut(BaseModel):
    """A file. Times are UTC epoch seconds."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"

    @classmethod
    def of(cls, file: File) -> Self:
        """Return the API's view of a file."""
        return cls(
            id=file.id,
            bytes=file.size_bytes,
            created_at=int(file.created_at.timestamp()),
            expires_at=int(file.expires_at.timestamp()),
            filename=file.name,
            purpose=file.purpose,  # the column holds nothing else
        )


class FileDeleted(BaseModel):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


Item = TypeVar("Item", bound=Any)


class OpenAIList(BaseModel, Generic[Item]):
    """A page of a list in OpenAI's shape. ``last_id`` is the ``after`` of the next page."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: list[Item], has_more: bool) -> Self:
        """Return a page of objects with ids."""
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=has_more)


class FileList(OpenAIList[FileOut]):
    """A page of files. ``last_id`` is the ``after`` of the next page."""


class FileQuery(Strict):
    """The requested page of files."""

    purpose: Literal["batch", "batch_output"] | None = None
    after: ObjectId | None = None
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"


class UploadFields(Strict):
    """The fields of an upload beside its file."""

    purpose: Literal["batch"]
    expires_anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    expires_s: ExpirySeconds | None = Field(None, alias="expires_after[seconds]")


def upload_fields(fields: Mapping[str, str]) -> UploadFields:
    """Return the checked fields of an upload. Raises InvalidRequestError naming the wrong one."""
    try:
        return UploadFields.model_validate(dict(fields))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        name = str(problem["loc"][0])
        code = "unknown_parameter" if problem["type"] == "extra_forbidden" else None
        raise InvalidRequestError(f"{name}: {problem['msg']}", param=name, code=code) from error
