"""The declared state of a server, as in the file of ``fairserve apply``, by the names of its objects.

The fields are those of the API's bodies, with the same checks and defaults: an omitted field is its
default. Values have one form, so that two declarations of the same state are equal. What operators do in
an incident is not declared: suspended tenants and apps, blocked users, drained workers, pinned profiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)

from fairserve.interactions.call import TenantLevels
from fairserve.platform.background.webhooks.event_types import TYPES, EventType
from fairserve.platform.background.webhooks.schemas import Description, Types, Url
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.validation import text_of
from fairserve.platform.base.yaml_file import YamlFileError, read_yaml
from fairserve.platform.db.schemas import FieldError, Name, PriorityWeight, Strict, UserId, Weight
from fairserve.platform.fleet.schemas import (
    MAX_ALIASES,
    MAX_WORKERS,
    AliasTargets,
    ApiWorker,
    ModelName,
    WorkerId,
)
from fairserve.platform.tenancy.apps.origins import CorsOrigins
from fairserve.platform.tenancy.apps.schemas import LimitsBody, ProfileBody, RunRules
from fairserve.platform.tenancy.apps.user_headers import DEFAULT_USER_HEADERS, UserHeaders
from fairserve.platform.tenancy.prices.schemas import PriceBody
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.quotas.service import NOTHING, merged
from fairserve.platform.tuning.schemas import ThrottlingChoice

DEFAULT_MANAGER = "apply"
MAX_SHOWN = 20
"""Problems of a file that are shown."""


def _quota(body: ContractBody) -> ContractBody:
    """Return a quota with only the limits that it has. Raises FieldError for a contradiction."""
    try:
        limits = merged(NOTHING, body, "")
    except InvalidRequestError as error:
        field = (error.param or "").lstrip(".")
        raise FieldError(field, error.message.removeprefix(f".{field}: ")) from None
    return ContractBody(
        **{name: value for name, value in limits if value != getattr(NOTHING, name)}
    )


def _by_type(events: list[EventType]) -> list[EventType]:
    return [name for name in TYPES if name in events]


def _distinct(value: Any, check: Any) -> Any:
    """Check objects by name: one without fields may be empty, and no two names have one normal form."""
    if isinstance(value, Mapping):
        value = {name: {} if each is None else each for name, each in value.items()}
    found = check(value)
    if isinstance(value, Mapping) and len(found) < len(value):
        raise ValueError("two of these names are the same without surrounding space")
    return found


Quota = Annotated[ContractBody, AfterValidator(_quota)]
Distinct = WrapValidator(_distinct)


class DeclaredUser(Strict):
    """The settings of one end user."""

    weight: Weight = 1.0
    priority_weight: PriorityWeight | None = None
    rpm: int | None = Field(None, ge=1, le=1_000_000)
    contract: Quota = ContractBody()


class DeclaredWebhook(Strict):
    """A webhook; its URL is its name."""

    events: Annotated[Types, AfterValidator(_by_type)]
    description: Description = ""
    enabled: bool = True


class DeclaredApp(Strict):
    """An app."""

    profile: ProfileBody
    weight: Weight = 1.0
    priority_weight: PriorityWeight | None = None
    limits: LimitsBody = LimitsBody()
    contract: Quota = ContractBody()
    user_contract: Quota = ContractBody()
    user_headers: UserHeaders | None = None
    cors_origins: CorsOrigins | None = None
    run_rules: RunRules | None = None

    @model_validator(mode="after")
    def _defaults(self) -> Self:
        if self.user_headers == list(DEFAULT_USER_HEADERS):
            self.user_headers = None
        self.cors_origins = self.cors_origins or None
        return self


class DeclaredTenant(Strict):
    """A tenant with its apps, users and webhooks."""

    weight: Weight = 1.0
    levels: TenantLevels | None = None
    contract: Quota = ContractBody()
    apps: Annotated[dict[Name, DeclaredApp], Distinct] = Field(default_factory=dict)
    users: Annotated[dict[UserId, DeclaredUser], Distinct] = Field(default_factory=dict)
    webhooks: Annotated[dict[Url, DeclaredWebhook], Distinct] = Field(default_factory=dict)


class Declaration(Strict):
    """A whole file."""

    managed_by: Name = DEFAULT_MANAGER
    """Name of this declaration; ``--prune`` deletes only objects that have it."""
    throttling: ThrottlingChoice | None = None
    """Null: not declared, and left as it is."""
    prices: list[PriceBody] = Field(default_factory=list)
    workers: dict[WorkerId, ApiWorker] = Field(default_factory=dict, max_length=MAX_WORKERS)
    aliases: dict[ModelName, AliasTargets] = Field(default_factory=dict, max_length=MAX_ALIASES)
    tenants: Annotated[dict[Name, DeclaredTenant], Distinct] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen = set()
        for number, price in enumerate(self.prices):
            if (price.model, price.valid_from) in seen:
                when = "without valid_from" if price.valid_from is None else "of the same time"
                raise FieldError(
                    f"prices.{number}", f"{price.model!r} has two prices {when}; allowed: one"
                )
            seen.add((price.model, price.valid_from))
        for name, targets in self.aliases.items():
            for target in targets:
                if target in self.aliases:
                    raise FieldError(
                        f"aliases.{name}",
                        f"{target!r} is an alias itself; targets must be models",
                    )
        urls: dict[str, str] = {}
        for name, worker in self.workers.items():
            if (other := urls.setdefault(worker.url, name)) != name:
                raise FieldError(f"workers.{name}", f"url: worker {other!r} has the same")
            if worker.model in self.aliases:
                raise FieldError(f"workers.{name}", f"model: {worker.model!r} is an alias")
        return self


class DeclarationError(ValueError):
    """A file is not a declaration. The message has a line for each problem, with its place and field."""


def read_declaration(path: Path, content: bytes | None = None) -> Declaration:
    """Read a file, or parse the given ``content`` of it. Raises DeclarationError."""
    try:
        file = read_yaml(path, content)
    except YamlFileError as error:
        raise DeclarationError(str(error)) from None
    try:
        return Declaration.model_validate({} if file.content is None else file.content)
    except ValidationError as error:
        problems = error.errors()
        lines = []
        for each in problems[:MAX_SHOWN]:
            place = tuple(part for part in each["loc"] if part != "[key]")
            cause = each.get("ctx", {}).get("error")
            if isinstance(cause, FieldError):
                place += tuple(int(p) if p.isdigit() else p for p in cause.field.split(".", 1))
            lines.append(f"{file.at(*place)}: {_dotted(place)}{_problem(each, place)}")
        if len(problems) > MAX_SHOWN:
            lines.append(f"and {len(problems) - MAX_SHOWN} more problems")
        raise DeclarationError("\n".join(lines)) from None


def _problem(error: Any, place: Sequence[str | int]) -> str:
    """Return the text of one of pydantic's errors, with the fields that the place may have."""
    if error["type"] == "extra_forbidden":
        return f"unknown field; allowed: {', '.join(_fields_at(place[:-1]))}"
    if error["type"] == "model_type":
        return f"must be a mapping; its fields: {', '.join(_fields_at(place))}"
    return text_of(error)


def _fields_at(place: Sequence[str | int]) -> Iterator[str]:
    """Yield the fields of the object at a place of a file."""
    shape: Any = Declaration
    for part in place:
        if isinstance(shape, type) and issubclass(shape, BaseModel):
            shape = shape.model_fields[str(part)].annotation
        else:  # of a list or a mapping
            *_, shape = get_args(shape)
        if get_origin(shape) in (Union, UnionType):  # a field that may be null
            shape, *_ = get_args(shape)
        if get_origin(shape) is Annotated:
            shape, *_ = get_args(shape)
    yield from shape.model_fields


def _dotted(place: tuple[str | int, ...]) -> str:
    shown = (part if isinstance(part, int) or part.isprintable() else repr(part) for part in place)
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown)
    text = "".join(parts).lstrip(".")
    return f"{text}: " if text else ""
