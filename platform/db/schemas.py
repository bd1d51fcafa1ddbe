"""Common parts of the management endpoints' schemas: strict bodies, names, and pages of lists."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from fairserve.platform.base.user_ids import normal_user_id
from fairserve.platform.db.base import ID_CHARS, NAME_CHARS
from fairserve.platform.db.ledger import WIDE_ID_CHARS

MAX_PAGE = 1000
NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f]*$"

Item = TypeVar("Item")

Name = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=NAME_CHARS, pattern=NO_CONTROL_CHARACTERS
    ),
]
"""A name that people choose."""

NamePart = Annotated[str, StringConstraints(max_length=NAME_CHARS, pattern=NO_CONTROL_CHARACTERS)]
"""Text to search for in names; empty for all names."""

UserId = Annotated[
    str,
    AfterValidator(normal_user_id),
    Field(json_schema_extra={"minLength": 1, "maxLength": NAME_CHARS}),
]
"""An end user's id in its one spelling."""

ModelName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=WIDE_ID_CHARS, pattern=NO_CONTROL_CHARACTERS),
]
"""A model or an alias, as calls ask for it."""

ObjectId = Annotated[str, StringConstraints(min_length=1, max_length=ID_CHARS, pattern=r"^[\w-]+$")]
"""An id that this server made."""


Weight = Annotated[float, Field(ge=0.01, le=100)]
"""2 is entitled to twice the service of 1."""


class Strict(BaseModel):
    """A body or query: unknown fields are refused, and errors do not repeat the input."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


class FieldError(ValueError):
    """A check of several fields failed: ``field`` is the one to change, ``message`` a sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Paging(Strict):
    """The part of a list that is asked for."""

    limit: int = Field(100, ge=1, le=MAX_PAGE)
    offset: int = Field(0, ge=0, le=1 << 31)


class NamedPaging(Paging):
    """A page of what is there, or of what is deleted and not purged yet; ``name`` is a part of its
    name, in whatever case.
    """

    deleted: bool = False
    name: NamePart = ""


class TenantQuery(Strict):
    """``tenant`` names the tenant for an admin key; a tenant key may leave it out."""

    tenant: ObjectId | None = None


class TenantPaging(Paging):
    """A page of a tenant's list."""

    tenant: ObjectId | None = None


class NamedTenantPaging(NamedPaging, TenantPaging):
    """The same of a tenant."""


class Page(BaseModel, Generic[Item]):
    """A part of a list in its stable order, and how long the whole list is."""

    items: list[Item]
    total: int
    limit: int
    offset: int


class KeyOut(BaseModel):
    """A key as it is shown after its creation, without the secret."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    prefix: str
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewKeyOut(KeyOut):
    """The answer that shows a new key, once."""

    api_key: str = Field(repr=False)
