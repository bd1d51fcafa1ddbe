"""The desired fleet, of settings, API and fleet file together, and the steps towards it.

Each source has its part: workers, aliases, tokenizers. Operators drain workers of any source, by
id. :func:`merge` joins the parts, :func:`clashes` names conflicts, and :func:`changes`
compares the result with what is there and returns the next steps: join, drain, undrain, remove. All
of it is pure; ``running_fleet`` carries it out.

A worker that is no longer wanted, or wanted otherwise, is drained first and removed when it has no
call left; only then does a changed one join again. One that is wanted again as it is before it was
removed takes calls again at once. Weakness: a worker that changes under its id is away while it
drains. Give the new one another id to have both until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from fairserve.platform.fleet.splits import Targets
from fairserve.platform.fleet.worker_spec import WorkerSpec

Source = Literal["embedded", "settings", "api", "file"]

SOURCES: tuple[Source, ...] = ("embedded", "settings", "api", "file")
"""Sources in order: of two with the same id or alias, the first holds."""

PLACES: Mapping[str, str] = {
    "embedded": "the embedded workers",
    "settings": "the setting worker_urls",
    "api": "the admin API",
    "file": "the fleet file",
}


@dataclass(frozen=True, slots=True)
class FleetPart:
    """Workers, aliases and tokenizers of one source."""

    workers: tuple[WorkerSpec, ...] = ()
    aliases: Mapping[str, Targets] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    """Folder or hub id of the tokenizer by model."""


@dataclass(frozen=True, slots=True)
class DrainNote:
    """An operator's word that a worker shall not serve for now. None: not known."""

    by: str | None = None
    """Visible prefix of the key."""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredFleet:
    """Fleet of the database: the API's workers and aliases, and the drained workers of all sources."""

    part: FleetPart = FleetPart()
    drains: Mapping[str, DrainNote] = field(default_factory=dict)
    """By worker id; of workers that no source names, too."""


@dataclass(frozen=True, slots=True)
class DesiredWorker:
    """A worker that shall be there."""

    spec: WorkerSpec
    source: Source
    drain: DrainNote | None = None

    @property
    def drained(self) -> bool:
        """Return whether the worker is listed, but does not serve."""
        return self.drain is not None


@dataclass(frozen=True, slots=True)
class DesiredAlias:
    """Another name for a model, or a split between several."""

    targets: Targets
    source: Source


@dataclass(frozen=True, slots=True)
class Desired:
    """All parts together."""

    workers: Mapping[str, DesiredWorker] = field(default_factory=dict)
    aliases: Mapping[str, DesiredAlias] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)

    def declared_models(self) -> set[str]:
        """Return the models that workers are configured to serve."""
        return {worker.spec.model for worker in self.workers.values()} - {""}


def merge(parts: Mapping[Source, FleetPart], drains: Mapping[str, DrainNote] = {}) -> Desired:
    """Return the parts together; never fails. Tokenizers of the fleet file hold before others.

    ``drains`` of ids that no part names are left aside.
    """
    workers: dict[str, DesiredWorker] = {}
    aliases: dict[str, DesiredAlias] = {}
    tokenizers: dict[str, str] = {}
    for source in SOURCES:
        part = parts.get(source, FleetPart())
        for spec in part.workers:
            drain = drains.get(spec.worker_id)
            workers.setdefault(spec.worker_id, DesiredWorker(spec, source, drain))
        for name, targets in part.aliases.items():
            aliases.setdefault(name, DesiredAlias(targets, source))
        tokenizers |= part.tokenizers
    return Desired(workers, aliases, tokenizers)


# --- what does not fit ----------------------------------------------------------------------------


def clashes(part: FleetPart, others: Desired, served: Collection[str] = ()) -> list[str]:
    """Why ``part`` cannot be beside ``others``, a sentence each; empty if it can.

    ``served`` are the names of models that workers serve now. Fields by themselves are checked
    where they are read.
    """
    return [*_worker_clashes(part, others), *_alias_clashes(part, others, served)]


def _worker_clashes(part: FleetPart, others: Desired) -> Iterable[str]:
    ids: set[str] = set()
    urls = {w.spec.url: w for w in others.workers.values() if w.spec.url}
    own_urls: dict[str, str] = {}
    for spec in part.workers:
        known = others.workers.get(spec.worker_id)
        if known is not None:
            yield f"worker {spec.worker_id!r} is one of {PLACES[known.source]}"
        elif spec.worker_id in ids:
            yield f"worker {spec.worker_id!r} is given twice"
        ids.add(spec.worker_id)
        same = urls.get(spec.url)
        if same is not None and same.spec.worker_id != spec.worker_id:
            yield (
                f"worker {spec.worker_id!r} has the URL of worker {same.spec.worker_id!r},"
                f" one of {PLACES[same.source]}"
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
            yield f"alias {name!r} is one of {PLACES[known.source]}"
        elif name in models:
            yield f"alias {name!r} has the name of a model that is served"
        elif name in aimed:
            yield f"alias {name!r} is what another alias leads to; an alias leads to models only"
        for target in targets:
            if target in part.aliases or target in others.aliases:
                yield f"alias {name!r} leads to the alias {target!r}; allowed: models"


# --- the way there --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Present:
    """A worker that the fleet, or the supervisor of embedded workers, has added."""

    spec: WorkerSpec
    source: Source
    draining: bool = False
    idle: bool = False
    """Draining, and without calls."""


@dataclass(frozen=True, slots=True)
class Join:
    """Add this worker."""

    worker: DesiredWorker


@dataclass(frozen=True, slots=True)
class Drain:
    """Give it no new calls."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """It takes calls again."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """It has drained: take it out."""

    worker_id: str


Change = Join | Drain | Undrain | Remove


def changes(desired: Desired, present: Mapping[str, Present]) -> list[Change]:
    """Return the steps that can be taken now; call again when a draining worker is idle.

    Embedded workers are added and removed by their supervisor: they are only drained and undrained.
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
    """Return whether the present worker is the wanted one."""
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
