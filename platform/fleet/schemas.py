"""Schemas of workers and aliases, in the admin API and the fleet file."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from fairserve.engine.wire.base import KvEndpoints
from fairserve.engine.wire.tasks import TASKS, Task
from fairserve.platform.db.base import TEXT_CHARS
from fairserve.platform.db.fleet import FleetWorker
from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.db.schemas import FieldError, Managed, Paging, Strict
from fairserve.platform.fleet.worker_spec import WorkerKind, WorkerSpec

MAX_WORKERS = 1000
MAX_ALIASES = 1000
MAX_DRAINS = 4000
"""Number of drains above which those of unknown workers are deleted."""
MAX_TARGETS = 20
MAX_WEIGHT = 1e6
URL_CHARS = 500
KEY_NAME = "FAIRSERVE_WORKER_KEY_"
"""Required prefix of environment variables named through the API. Their values are sent to a URL of the
same request; the prefix keeps an admin key from reading the server's other secrets."""

_PRINTABLE = r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"


def _url(value: str) -> str:
    """Return a base URL without a trailing slash or ``/v1``."""
    problem = "a worker URL must be http:// or https:// with a host, without user, query, fragment"
    try:
        parts = urlsplit(value.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(problem) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(problem)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(problem)
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in value.strip()):
        raise ValueError(problem)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def targets_of(value: Any) -> dict[str, float]:
    """Return the weights by model of ``"llama"`` or ``{"chat-v1": 9, "chat-v2": 1}``."""
    if isinstance(value, str):
        value = {value: 1}
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_TARGETS:
        raise ValueError(f"allowed: a model's name, or 1 to {MAX_TARGETS} names with their weights")
    for name, weight in value.items():
        if not isinstance(name, str) or not 1 <= len(name) <= WIDE_ID_CHARS:
            raise ValueError(f"a model's name has 1 to {WIDE_ID_CHARS} characters")
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or not 0 < weight <= MAX_WEIGHT:
            raise ValueError(f"the weight of {name!r} must be a number above 0 and up to 1,000,000")
    return {name: float(weight) for name, weight in value.items()}


WorkerId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ModelName = Annotated[
    str, StringConstraints(min_length=1, max_length=WIDE_ID_CHARS, pattern=_PRINTABLE)
]
WorkerUrl = Annotated[str, StringConstraints(max_length=URL_CHARS), AfterValidator(_url)]
_ENDPOINT = r"(tcp|ipc)://[^\s,]+"
Endpoints = Annotated[
    str, StringConstraints(max_length=TEXT_CHARS, pattern=rf"^{_ENDPOINT}(,{_ENDPOINT})*$")
]
"""Endpoints of KV events, separated by commas."""
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
AliasTargets = Annotated[dict[str, float], BeforeValidator(targets_of)]
TokenizerName = Annotated[
    str, StringConstraints(min_length=1, max_length=URL_CHARS, pattern=_PRINTABLE)
]


class Identified(Strict):
    """A body with the id of a worker, its first field."""

    id: WorkerId


class WorkerBody(Strict):
    """A worker without its id; see :class:`~fairserve.platform.fleet.worker_spec.WorkerSpec`."""

    url: WorkerUrl
    kind: WorkerKind = "vllm"
    model: ModelName | None = None
    """Name of the model at the worker; null for the first that it reports."""
    kv_events: Endpoints | None = None
    kv_replay: Endpoints | None = None
    kv_tokens: int | None = Field(None, ge=256, le=1 << 40)
    concurrency: int = Field(16, ge=1, le=4096)
    api_key_env: VariableName | None = None

    @model_validator(mode="after")
    def _replay_needs_events(self) -> Self:
        if self.kv_replay is not None and self.kv_events is None:
            raise FieldError("kv_replay", "kv_replay needs kv_events")
        published, replays = map(_separate, (self.kv_events, self.kv_replay))
        if replays and len(replays) != len(published):
            raise FieldError(
                "kv_replay",
                f"kv_replay has {len(replays)} endpoints and kv_events {len(published)}; each needs its"
                " own, in the same order",
            )
        return self


def spec_of(worker: FileWorkerIn | WorkerJoin | FleetWorker) -> WorkerSpec:
    """Return the specification of a worker, for the pool."""
    published, replays = map(_separate, (worker.kv_events, worker.kv_replay))
    return WorkerSpec(
        worker_id=worker.id,
        url=worker.url,
        kind="openai" if worker.kind == "openai" else "vllm",
        model=worker.model or "",
        kv_events=tuple(map(KvEndpoints, published, replays or [""] * len(published))),
        kv_tokens=worker.kv_tokens,
        concurrency=worker.concurrency,
        api_key_env=worker.api_key_env or "",
    )


def _separate(endpoints: str | None) -> list[str]:
    return endpoints.split(",") if endpoints else []


class FileWorkerIn(WorkerBody, Identified):
    """A worker of the fleet file."""

    tasks: list[Task] = Field(default_factory=list, max_length=len(TASKS))

    def spec(self) -> WorkerSpec:
        """Return the worker's specification for the pool."""
        return replace(spec_of(self), tasks=tuple(sorted(set(self.tasks))))


class ApiWorker(WorkerBody):
    """A worker of the API without its id; ``tokenizer`` belongs to its ``model``."""

    tokenizer: TokenizerName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokenizer is not None and self.model is None:
            raise FieldError("tokenizer", "tokenizer needs model")
        if self.api_key_env is not None and not self.api_key_env.startswith(KEY_NAME):
            raise FieldError("api_key_env", f"api_key_env must begin with {KEY_NAME}")
        return self


class WorkerPut(ApiWorker, Managed):
    """The values of a worker that joined through the API; an omitted one has its default."""


class WorkerJoin(WorkerPut, Identified):
    """A worker to be added."""


class RemoveQuery(Strict):
    """Options for the removal of a worker."""

    force: bool = False
    """Remove at once; responses in progress are cut off."""


class AliasPut(Managed):
    """Target of an alias: a model's name, or several with their weights."""

    target: AliasTargets


class WorkerQuery(Paging):
    """Filter and order of the list of workers."""

    model: ModelName | None = None
    sort: Literal["id", "drain_cost"] = "id"
    """``drain_cost``: the worker whose drain costs least first, by ``drain_cost_tokens``, then calls."""


class WorkerOut(BaseModel):
    """A worker of any source. Unset fields are null."""

    id: str
    source: str
    state: str
    """``joining``, ``serving``, ``draining``, ``drained``, or ``leaving``: removed once drained."""
    problem: str
    """Reason why it cannot join, or its last problem."""
    url: str
    kind: str
    model: str | None
    """The served or configured model."""
    configured_model: str | None
    """Null: the first model that it reports."""
    tokenizer: str | None
    """The tokenizer that it was given for its model; null for a worker of another source."""
    kv_events: str | None
    kv_replay: str | None
    kv_tokens: int | None
    concurrency: int
    api_key_env: str | None
    calls: int
    """Calls in progress at the worker."""
    drain_cost_tokens: int | None = None
    """Prompt tokens of the runs in progress there, which another worker would compute again after a
    drain; null if the system reserves no memory for runs."""
    drained_by: str | None = None
    """Visible prefix of the key that drained it; null if it is not drained."""
    drained_at: datetime | None = None
    managed_by: str | None
    note: str | None = None
    """Effect of its drain: models that no other worker serves."""


class AliasOut(BaseModel):
    """An alias, or a split."""

    name: str
    source: str
    target: dict[str, float]
    managed_by: str | None
    serving: list[str]
    """Models of the alias that have a worker."""
