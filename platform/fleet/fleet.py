"""The desired fleet, merged from settings, API and fleet file, and the steps towards it.

Each source has a part: workers, aliases, tokenizers. Operators drain workers of any source, by id.
:func:`merge` merges the parts, :func:`clashes` returns conflicts, and :func:`changes` compares the
result with the current fleet and returns the next steps: join, drain, undrain, remove. These functions
are pure; ``running_fleet`` executes the steps.

A worker that was removed or changed in its source is drained first and removed once it has no calls;
only then does a changed worker join again. If the change is reverted before the removal, the worker is
undrained at once. Weakness: a worker that changes under its id does not serve while it drains. Use
another id for the new worker to have both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from fairserve.platform.fleet.splits import Targets
from fairserve.platform.fleet.worker_spec import WorkerSpec

Source = Literal["embedded", "settings", "api", "file", "pool"]

SOURCES: tuple[Source, ...] = ("embedded", "settings", "api", "file", "pool")
"""Sources by precedence: of two entries with the same id or alias, the first is used."""

PLACES: Mapping[str, str] = {
    "embedded": "the setting workers",
    "settings": "the setting worker_urls",
    "api": "the admin API",
    "file": "the fleet file",
    "pool": "the InferencePool",
}


@dataclass(frozen=True, slots=True)
class StoredValues:
    """Values of a worker that only the database has."""

    tokenizer: str | None = None
    """Folder or hub id of the tokenizer that it was given for its model."""
    managed_by: str | None = None
    """Name of the declaration that manages it."""


@dataclass(frozen=True, slots=True)
class FleetPart:
    """Workers, aliases and tokenizers of one source."""

    workers: tuple[WorkerSpec, ...] = ()
    aliases: Mapping[str, Targets] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    """Folder or hub id of the tokenizer, by model."""
    managers: Mapping[str, str] = field(default_factory=dict)
    """Names of the declarations that manage aliases, by alias."""
    stored: Mapping[str, StoredValues] = field(default_factory=dict)
    """Values of workers of the API, by id."""


@dataclass(frozen=True, slots=True)
class DrainNote:
    """Author and time of a drain."""

    by: str
    """Visible prefix of the author's key."""
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredFleet:
    """The stored fleet: the API's workers and aliases, and the drained workers of all sources."""

    part: FleetPart = FleetPart()
    drains: Mapping[str, DrainNote] = field(default_factory=dict)
    """Drains by worker id, including workers that no source has."""


@dataclass(frozen=True, slots=True)
class DesiredWorker:
    """A configured worker."""

    spec: WorkerSpec
    source: Source
    drain: DrainNote | None = None
    stored: StoredValues = StoredValues()

    @property
    def drained(self) -> bool:
        """Return whether the worker is listed, but does not serve."""
        return self.drain is not None


@dataclass(frozen=True, slots=True)
class DesiredAlias:
    """Another name for a model, or a split between several."""

    targets: Targets
    source: Source
    managed_by: str | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """The merged parts of all sources."""

    workers: Mapping[str, DesiredWorker] = field(default_factory=dict)
    aliases: Mapping[str, DesiredAlias] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)

    def declared_models(self) -> set[str]:
        """Return the models that workers are configured to serve."""
        return {worker.spec.model for worker in self.workers.values()} - {""}


def merge(parts: Mapping[Source, FleetPart], drains: Mapping[str, DrainNote] = {}) -> Desired:
    """Return the merged parts; never fails. Tokenizers of the fleet file take precedence.

    ``drains`` of unknown ids are ignored.
    """
    workers: dict[str, DesiredWorker] = {}
    aliases: dict[str, DesiredAlias] = {}
    tokenizers: dict[str, str] = {}
    for source in SOURCES:
        part = parts.get(source, FleetPart())
        for spec in part.workers:
            name = spec.worker_id
            stored = part.stored.get(name, StoredValues())
            workers.setdefault(name, DesiredWorker(spec, source, drains.get(name), stored))
        for name, targets in part.aliases.items():
            aliases.setdefault(name, DesiredAlias(targets, source, part.managers.get(name)))
        tokenizers |= part.tokenizers
    return Desired(workers, aliases, tokenizers)


# --- conflicts ------------------------------------------------------------------------------------


def clashes(part: FleetPart, others: Desired, served: Collection[str] = ()) -> list[str]:
    """Return the conflicts of ``part`` with ``others``, as sentences; empty if there are none.

    ``served`` are the names of the served models. Single fields are checked where they are parsed.
    """
    return [*_worker_clashes(part, others), *_alias_clashes(part, others, served)]


def _worker_clashes(part: FleetPart, others: Desired) -> Iterable[str]:
    ids: set[str] = set()
    urls = {w.spec.url: w for w in others.workers.values() if w.spec.url}
    own_urls: dict[str, str] = {}
    for spec in part.workers:
        known = others.workers.get(spec.worker_id)
        if known is not None:
            yield f"worker {spec.worker_id!r} exists already, from {PLACES[known.source]}"
        elif spec.worker_id in ids:
            yield f"worker {spec.worker_id!r} is given twice"
        ids.add(spec.worker_id)
        same = urls.get(spec.url)
        if same is not None and same.spec.worker_id != spec.worker_id:
            yield (
                f"worker {spec.worker_id!r} has the URL of worker {same.spec.worker_id!r},"
                f" which comes from {PLACES[same.source]}"
            )
        elif own_urls.get(spec.url, spec.worker_id) != spec.worker_id:
            yield f"workers {own_urls[spec.url]!r} and {spec.worker_id!r} have the same URL"
        own_urls.setdefault(spec.url, spec.worker_id)
        if spec.model and (spec.model in others.aliases or spec.model in part.aliases):
            yield f"worker {spec.worker_id!r} serves {spec.model!r}, which is the name of an alias"


def _alias_clashes(part: FleetPart, others: Desired, served: Collection[str]) -> Iterable[str]:
    models = others.declared_models() | set(served)
    aimed = {target for alias in others.aliases.values() for target in alias.targets}
    for name, targets in part.aliases.items():
        known = others.aliases.get(name)
        if known is not None:
            yield f"alias {name!r} exists already, from {PLACES[known.source]}"
        elif name in models:
            yield f"alias {name!r} has the name of a model that is served"
        elif name in aimed:
            yield f"alias {name!r} is the target of another alias; targets must be models"
        for target in targets:
            if target in part.aliases or target in others.aliases:
                yield f"alias {name!r} has the alias {target!r} as target; targets must be models"


# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Present:
    """A current worker, added by the fleet or by the supervisor of embedded workers."""

    spec: WorkerSpec
    source: Source
    draining: bool = False
    idle: bool = False
    """True if it is draining and has no calls."""


@dataclass(frozen=True, slots=True)
class Join:
    """Add a worker."""

    worker: DesiredWorker


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop new calls to a worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """Resume calls to a worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a drained worker."""

    worker_id: str


Change = Join | Drain | Undrain | Remove


def changes(desired: Desired, present: Mapping[str, Present]) -> list[Change]:
    """Return the steps that can be executed now; call it again when a draining worker is idle.

    Embedded workers are only drained and undrained; their supervisor adds and removes them.
    """
    wanted = {name: worker for name, worker in desired.workers.items() if not worker.drained}
    steps: list[Change] = []
    free = {name for name, worker in wanted.items() if worker.source != "embedded"} - set(present)
    for worker_id, there in present.items():
        stays = worker_id in wanted and _is(there, wanted[worker_id])
        if stays and there.draining:
            steps.append(Undrain(worker_id))
        elif there.draining:
            if there.idle and there.source != "embedded":
                steps.append(Remove(worker_id))
                if worker_id in wanted and wanted[worker_id].source != "embedded":
                    free.add(worker_id)
        elif not stays:
            steps.append(Drain(worker_id))
    return steps + [Join(worker) for worker_id, worker in wanted.items() if worker_id in free]


def _is(there: Present, wanted: DesiredWorker) -> bool:
    """Return whether the current worker equals the desired one."""
    if "embedded" in (there.source, wanted.source):
        return there.source == wanted.source  # its supervisor chose the URL
    return there.spec == wanted.spec


def after(present: Mapping[str, Present], steps: Iterable[Change]) -> dict[str, Present]:
    """Return the fleet after the steps."""
    result = dict(present)
    for step in steps:
        match step:
            case Join(worker):
                result[worker.spec.worker_id] = Present(worker.spec, worker.source)
            case Drain(worker_id):
                result[worker_id] = replace(result[worker_id], draining=True)
            case Undrain(worker_id):
                result[worker_id] = replace(result[worker_id], draining=False, idle=False)
            case Remove(worker_id):
                del result[worker_id]
    return result
