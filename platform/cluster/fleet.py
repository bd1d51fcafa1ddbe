"""The fleet as it shall be: what settings, API and fleet file say together, and the way there.

Each source says its part: workers, aliases, tokenizers. :func:`merge` puts the parts together,
:func:`clashes` says what does not fit, and :func:`changes` compares the result with what is there
and returns the next steps: join, drain, remove. All of it is pure; ``running_fleet`` carries it out.

A worker that is no longer wanted, or wanted otherwise, is drained first and removed when it has no
call left; only then does a changed one join again. Weakness: a worker that changes under its id is
away while it drains. Give the new one another id to have both meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.completions.splits import Targets

Source = Literal["embedded", "settings", "api", "file"]

SOURCES: tuple[Source, ...] = ("embedded", "settings", "api", "file")
"""Where two say the same id or alias, the first holds."""

PLACES: Mapping[str, str] = {
    "embedded": "the embedded workers",
    "settings": "the setting worker_urls",
    "api": "the admin API",
    "file": "the fleet file",
}


@dataclass(frozen=True, slots=True)
class FleetPart:
    """What one source says."""

    workers: tuple[WorkerSpec, ...] = ()
    aliases: Mapping[str, Targets] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    """Folder or hub id of the tokenizer by model."""
    drained: frozenset[str] = frozenset()
    """Ids of workers that shall not serve for now."""


@dataclass(frozen=True, slots=True)
class DesiredWorker:
    """A worker that shall be there; ``drained``: listed, but not serving."""

    spec: WorkerSpec
    source: Source
    drained: bool = False


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
        """Models that workers are said to serve."""
        return {worker.spec.model for worker in self.workers.values()} - {""}


def merge(parts: Mapping[Source, FleetPart]) -> Desired:
    """The parts together; never fails. Tokenizers of the fleet file hold before others."""
    workers: dict[str, DesiredWorker] = {}
    aliases: dict[str, DesiredAlias] = {}
    tokenizers: dict[str, str] = {}
    for source in SOURCES:
        part = parts.get(source, FleetPart())
        for spec in part.workers:
            drained = spec.worker_id in part.drained
            workers.setdefault(spec.worker_id, DesiredWorker(spec, source, drained))
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
    """A worker that is there because the fleet said so."""

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
class Remove:
    """It has drained: take it out."""

    worker_id: str


Change = Join | Drain | Remove


def changes(desired: Desired, present: Mapping[str, Present]) -> list[Change]:
    """The steps that can be taken now; ask again when a draining worker has become idle.

    Embedded workers are their supervisor's, and not touched.
    """
    wanted = {
        worker_id: worker
        for worker_id, worker in desired.workers.items()
        if worker.source != "embedded" and not worker.drained
    }
    steps: list[Change] = []
    free = set(wanted) - set(present)
    for worker_id, there in present.items():
        if there.draining:
            if there.idle:
                steps.append(Remove(worker_id))
                if worker_id in wanted:
                    free.add(worker_id)
        elif worker_id not in wanted or wanted[worker_id].spec != there.spec:
            steps.append(Drain(worker_id))
    return steps + [Join(worker) for worker_id, worker in wanted.items() if worker_id in free]


def after(present: Mapping[str, Present], steps: Iterable[Change]) -> dict[str, Present]:
    """What is there once the steps are taken."""
    result = dict(present)
    for step in steps:
        match step:
            case Join(worker):
                result[worker.spec.worker_id] = Present(worker.spec, worker.source)
            case Drain(worker_id):
                result[worker_id] = replace(result[worker_id], draining=True)
            case Remove(worker_id):
                del result[worker_id]
    return result
