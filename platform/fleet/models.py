"""Served models as clients see them: names, aliases, splits, and the resolution of names.

A name is that of a served model, or an alias of one model or, by weight, of several versions. An alias
refers to models only, never to another alias. A run keeps its version (``splits``) unless that has no
worker. :mod:`fairserve.platform.fleet.model_pools` has the workers of each model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairserve.engine.wire.tasks import TASKS, Task, Tasks
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.errors import (
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.fleet.prompts.reader import PromptReader
from fairserve.platform.fleet.prompts.worker import WorkerPromptReader
from fairserve.platform.fleet.splits import Targets, pick_available

SHOWN_NAMES = 50
ABSENT_S = 30.0
"""Seconds after the loss of all workers of a model during which its calls wait for one."""
BODY_BYTES_PER_TOKEN = 16
"""Request bytes per token of the context. English has 4 to 5 characters per token; text escaped in
JSON takes up to 12 bytes."""
BODY_BASE_BYTES = 64 * 1024
"""Request bytes for fields other than the prompt. Every model takes a body of this size."""
MAX_CALL_TOKENS = 300_000
"""Tokens of all inputs of one embedding or ranking call, as at OpenAI."""
SHOWN_WORKERS = 3


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. ``names[0]`` is its name in ``/v1/models``."""

    names: tuple[str, ...]
    worker_name: str
    """Name of the model at the workers, and of their pool unless it is an adapter."""
    context_tokens: int
    """Maximum tokens of prompt and output, within the KV cache of the smallest worker."""
    reader: PromptReader | WorkerPromptReader
    workers: frozenset[str] = frozenset()
    """Ids of the workers for its calls, up or not."""
    created: int = field(default_factory=lambda: int(utc_s()))
    drained: frozenset[str] = frozenset()
    """Ids of its drained workers."""
    kinds: frozenset[str] = frozenset()
    """Kinds of server among the others; see :mod:`fairserve.engine.wire.request_fields`."""
    tasks: Tasks = TASKS
    """Tasks that all of its workers serve; all tasks if no worker has joined yet."""
    base: str = ""
    """Model of which it is a LoRA adapter, and in whose pool its calls are; empty: it is none."""

    @property
    def max_body_bytes(self) -> int | None:
        """Return the maximum size of a body whose prompt may fit the context; None with images."""
        if "generate" not in self.tasks:
            return BODY_BASE_BYTES + BODY_BYTES_PER_TOKEN * MAX_CALL_TOKENS
        if self.reader.takes_media:
            return None
        return BODY_BASE_BYTES + BODY_BYTES_PER_TOKEN * self.context_tokens

    @property
    def shown_workers(self) -> str:
        """Return its first workers and their kinds for a message: ``w0, w1: vllm``."""
        workers = sorted(self.workers)
        more = ", ..." if len(workers) > SHOWN_WORKERS else ""
        kinds = "/".join(sorted(self.kinds))
        return f"{', '.join(workers[:SHOWN_WORKERS])}{more}: {kinds}" if workers else "none yet"

    def check_task(self, task: Task) -> None:
        """Raise InvalidRequestError naming ``model`` if its workers do not serve a task."""
        if task in self.tasks:
            return
        served = " and ".join(sorted(self.tasks)) or "no task in common"
        raise InvalidRequestError(
            f"model: {self.names[0]!r} does not {task}; its workers ({self.shown_workers}) serve"
            f" {served}; choose another model",
            param="model",
            code="unsupported_model",
        )

    def among(self, offered: frozenset[str]) -> frozenset[str]:
        """Return the workers that can serve a call of the offered ones; an empty set has every worker.

        Raises UnavailableError for an adapter that no offered worker has.
        """
        if not self.base:
            return offered
        holders = self.workers | self.drained
        able = holders & offered if offered else holders
        if offered and not able:
            raise UnavailableError(
                f"no endpoint that the gateway offers serves {self.names[0]!r}", code="no_worker"
            )
        return able

    def listing(self, name: str = "") -> dict[str, Any]:
        """Return the entry of ``/v1/models``, under this name or under an alias."""
        return {
            "id": name or self.names[0],
            "object": "model",
            "created": self.created,
            "owned_by": "fairserve",
            "max_model_len": self.context_tokens,
            **({"parent": self.base} if self.base else {}),
        }


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model that a name resolved to."""

    model: ServedModel
    answer_name: str
    """The model's name in the response, as in ``/v1/models``."""


class Models:
    """The models served now. Updated on the event loop; may be read from any thread."""

    def __init__(
        self, is_up: Callable[[str], bool], absent_s: Callable[[str], float] = lambda _: 0.0
    ) -> None:
        """By worker id, ``is_up`` returns whether it would start a call, ``absent_s`` the seconds since
        a lost worker last served.
        """
        self._is_up = is_up
        self._absent_s = absent_s
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, ServedModel] = {}
        self._aliases: dict[str, Targets] = {}
        self._expected: frozenset[str] = frozenset()

    # --- updates ----------------------------------------------------------------------------------

    def serve(self, model: ServedModel, adapters: Iterable[ServedModel] = ()) -> None:
        """Serve a model and its adapters, in place of what was known of them."""
        name = model.worker_name
        kept = {key: each for key, each in self._models.items() if each.base != name}
        self._models = kept | {each.worker_name: each for each in (model, *adapters)}
        self._index()

    def drop(self, worker_name: str) -> None:
        """Stop serving the model and its adapters. Unknown ones are ignored."""
        self._models = {
            name: model
            for name, model in self._models.items()
            if worker_name not in (name, model.base)
        }
        self._index()

    def set_aliases(self, aliases: Mapping[str, Targets]) -> None:
        """Set the aliases."""
        self._aliases = dict(aliases)

    def set_expected(self, names: Collection[str]) -> None:
        """Set the models that are not served yet but configured: their calls get 503, not 404."""
        self._expected = frozenset(names)

    def _index(self) -> None:
        names: dict[str, ServedModel] = {}
        for model in self._models.values():
            names[model.worker_name] = model
        for model in self._models.values():
            for name in model.names:
                names.setdefault(name, model)
        self._names = names

    # --- queries ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._models)

    def served(self) -> list[ServedModel]:
        """Return all models in the order in which they were first served."""
        return list(self._models.values())

    def names(self) -> set[str]:
        """Return every name of a served model, without aliases."""
        return set(self._names)

    def workers_up(self, worker_name: str) -> int:
        """Return the number of workers that would start a call of this model."""
        model = self._models.get(worker_name)
        return sum(map(self._is_up, model.workers)) if model is not None else 0

    def ready(self) -> list[str]:
        """Return the models with a worker that is up."""
        return [name for name, model in self._models.items() if self._has_worker(model)]

    def models_without(self, worker_id: str) -> list[str]:
        """Return the models of this worker, drained or not, that no other worker serves."""
        return [
            name
            for name, model in self._models.items()
            if worker_id in model.workers | model.drained
            and not any(map(self._is_up, model.workers - {worker_id}))
        ]

    def resolve(self, requested: str, key: str) -> Resolved:
        """Return the model that a name resolves to, for the run with this ``key``.

        Raises NotFoundError, which names the allowed models, and UnavailableError for expected models.
        """
        model = self._names.get(requested)
        if model is not None:
            self._check_present(model)
            return Resolved(model, model.names[0])
        targets = self._aliases.get(requested)
        if targets is not None:
            version = self._version(requested, targets, key)
            self._check_present(version)
            return Resolved(version, requested)
        if requested in self._expected or not self._models:
            raise _starting(f"no worker of {requested!r} is ready yet")
        raise self._unknown(requested)

    def max_body_bytes(self, is_allowed: Callable[[str], bool]) -> int | None:
        """Return the maximum body size over the models with an allowed name; None for no limit.

        There is no limit while a model is expected or if none is allowed; later checks reject the call.
        """
        if self._expected - self._models.keys():
            return None
        names = [*self._names, *self._aliases]
        limits = [self.max_body_bytes_of(name) for name in names if is_allowed(name)]
        known = [limit for limit in limits if limit is not None]
        return max(known) if known and len(known) == len(limits) else None

    def max_body_bytes_of(self, name: str) -> int | None:
        """Return the maximum body size of a call to this name; None for no limit or an unknown name."""
        model = self._names.get(name)
        models = [model] if model is not None else self._known(self._aliases.get(name, {}))
        limits = [each.max_body_bytes for each in models]
        known = [limit for limit in limits if limit is not None]
        return max(known) if known and len(known) == len(limits) else None

    def listings(self) -> list[dict[str, Any]]:
        """Return the entries of ``/v1/models``, with aliases of at least one served model."""
        if not self._models:
            raise _starting("no worker is ready yet")
        entries = [model.listing() for model in self._models.values()]
        return entries + [
            self._alias_listing(name, known)
            for name, targets in sorted(self._aliases.items())
            if (known := self._known(targets))
        ]

    def listing(self, name: str) -> dict[str, Any]:
        """Return the entry of one name. Raises as :meth:`resolve` does."""
        targets = self._aliases.get(name)
        known = self._known(targets) if targets is not None and name not in self._names else []
        if known:
            return self._alias_listing(name, known)
        return self.resolve(name, "").model.listing()

    def _version(self, alias: str, targets: Targets, key: str) -> ServedModel:
        known = {name: weight for name, weight in targets.items() if name in self._models}
        if not known:
            raise _starting(f"no worker of {' or '.join(map(repr, targets))} is ready yet")
        up = [name for name in known if self._has_worker(self._models[name])]
        return self._models[pick_available(alias, known, key, up)]

    def _check_present(self, model: ServedModel) -> None:
        """Raise UnavailableError if all workers have been lost for too long for calls to wait."""
        if not model.workers or model.drained:
            return
        absent_s = min(map(self._absent_s, model.workers))
        if absent_s >= ABSENT_S:
            raise UnavailableError(
                f"no worker of {model.names[0]!r} has responded for {absent_s:.0f} s",
                code="no_worker",
                headers={"Retry-After": "10"},
            )

    def _has_worker(self, model: ServedModel) -> bool:
        return any(map(self._is_up, model.workers))

    def _known(self, targets: Targets) -> list[ServedModel]:
        return [self._models[name] for name in targets if name in self._models]

    @staticmethod
    def _alias_listing(name: str, known: list[ServedModel]) -> dict[str, Any]:
        smallest = min(known, key=lambda model: model.context_tokens)
        return smallest.listing(name)

    def _unknown(self, requested: str) -> NotFoundError:
        allowed = [name for model in self._models.values() for name in model.names]
        allowed += sorted(name for name, targets in self._aliases.items() if self._known(targets))
        more = len(allowed) - SHOWN_NAMES
        text = ", ".join(allowed[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
        return NotFoundError(
            f"the model {requested!r} is not served; allowed: {text}",
            param="model",
            code="model_not_found",
        )


def _starting(text: str) -> UnavailableError:
    return UnavailableError(text, code="starting", headers={"Retry-After": "2"})
