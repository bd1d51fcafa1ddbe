"""The models that are served, as clients see them: names, aliases, splits, and what a name leads to.

A name is a served model's, or an alias that leads to one or, by weight, to several versions of one.
An alias leads to models only, never to another alias. A run stays with its version (``splits``),
unless that has no worker. Who serves what is told by :mod:`fairserve.platform.fleet.model_pools`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairserve.platform.base.errors import NotFoundError, UnavailableError
from fairserve.platform.fleet.prompt import PromptReader
from fairserve.platform.fleet.splits import Targets, pick_available
from fairserve.platform.fleet.worker_prompt import WorkerPromptReader

SHOWN_NAMES = 50
ABSENT_S = 30.0
"""Calls of a model whose workers have all been lost for so long do not wait for one."""
BODY_BYTES_PER_TOKEN = 16
"""Bytes of a request for each token of the context. English has 4 to 5 characters in a token; text that
JSON escapes takes up to 12 bytes."""
BODY_BASE_BYTES = 64 * 1024
"""For the fields that are no part of the prompt."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. ``names[0]`` is the name that ``/v1/models`` tells."""

    names: tuple[str, ...]
    worker_name: str
    """What the workers call it, and the name of their pool."""
    context_tokens: int
    """Prompt and output together, within the KV cache of the smallest worker."""
    reader: PromptReader | WorkerPromptReader
    workers: frozenset[str] = frozenset()
    """Ids of the workers that take its calls, whether they are up or not."""
    created: int = field(default_factory=lambda: int(time.time()))
    drained: frozenset[str] = frozenset()
    """Ids of its workers that take no calls for now."""
    kinds: frozenset[str] = frozenset()
    """Kinds of server among the others; see :mod:`fairserve.engine.wire.request_fields`."""

    @property
    def max_body_bytes(self) -> int | None:
        """The longest body of a prompt that may fit the context; None for a model that takes images."""
        if self.reader.takes_media:
            return None
        return BODY_BASE_BYTES + BODY_BYTES_PER_TOKEN * self.context_tokens

    def listing(self, name: str = "") -> dict[str, Any]:
        """The entry of ``/v1/models``, under this name or under an alias."""
        return {
            "id": name or self.names[0],
            "object": "model",
            "created": self.created,
            "owned_by": "fairserve",
            "max_model_len": self.context_tokens,
        }


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name led to."""

    model: ServedModel
    answer_name: str
    """The model's name in the answer: as ``/v1/models`` tells it."""


class Models:
    """What is served now. Told on the event loop; may be asked from any thread."""

    def __init__(
        self, is_up: Callable[[str], bool], absent_s: Callable[[str], float] = lambda _: 0.0
    ) -> None:
        """By worker id, ``is_up`` says whether it would begin with a call now, and ``absent_s`` since
        when one that has served does not.
        """
        self._is_up = is_up
        self._absent_s = absent_s
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, ServedModel] = {}
        self._aliases: dict[str, Targets] = {}
        self._expected: frozenset[str] = frozenset()

    # --- what is told -----------------------------------------------------------------------------

    def serve(self, model: ServedModel) -> None:
        """Serve a model, or replace what is known of it."""
        self._models = {**self._models, model.worker_name: model}
        self._index()

    def drop(self, worker_name: str) -> None:
        """The model is no longer served. Unknown ones are ignored."""
        kept = {name: model for name, model in self._models.items() if name != worker_name}
        self._models = kept
        self._index()

    def set_aliases(self, aliases: Mapping[str, Targets]) -> None:
        """The aliases that hold from now on."""
        self._aliases = dict(aliases)

    def set_expected(self, names: Collection[str]) -> None:
        """Models that are to be served, maybe soon: a call for one answers 503 until then."""
        self._expected = frozenset(names)

    def _index(self) -> None:
        names: dict[str, ServedModel] = {}
        for model in self._models.values():
            names[model.worker_name] = model
        for model in self._models.values():
            for name in model.names:
                names.setdefault(name, model)
        self._names = names

    # --- what is asked ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._models)

    def served(self) -> list[ServedModel]:
        """All models, the first served first."""
        return list(self._models.values())

    def names(self) -> set[str]:
        """Every name of a served model; aliases are none."""
        return set(self._names)

    def workers_up(self, worker_name: str) -> int:
        """How many workers would begin with a call of this model."""
        model = self._models.get(worker_name)
        return sum(map(self._is_up, model.workers)) if model is not None else 0

    def ready(self) -> list[str]:
        """The models that have a worker now."""
        return [name for name, model in self._models.items() if self._has_worker(model)]

    def models_without(self, worker_id: str) -> list[str]:
        """The models of this worker, drained or not, that no other worker serves now."""
        return [
            name
            for name, model in self._models.items()
            if worker_id in model.workers | model.drained
            and not any(map(self._is_up, model.workers - {worker_id}))
        ]

    def resolve(self, requested: str, key: str) -> Resolved:
        """What a name leads to, for the run that ``key`` stands for.

        Raises NotFoundError naming what is allowed, UnavailableError for what is not served yet.
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
        """The longest body that any of the models with an allowed name takes; None for no limit.

        There is none while a model is to come, or where no model is allowed: the answer says so.
        """
        if self._expected - self._models.keys():
            return None
        names = [*self._names, *self._aliases]
        limits = [self.max_body_bytes_of(name) for name in names if is_allowed(name)]
        known = [limit for limit in limits if limit is not None]
        return max(known) if known and len(known) == len(limits) else None

    def max_body_bytes_of(self, name: str) -> int | None:
        """The longest body of a call to this name; None for no limit, or if there is no such name."""
        model = self._names.get(name)
        models = [model] if model is not None else self._known(self._aliases.get(name, {}))
        limits = [each.max_body_bytes for each in models]
        known = [limit for limit in limits if limit is not None]
        return max(known) if known and len(known) == len(limits) else None

    def listings(self) -> list[dict[str, Any]]:
        """The entries of ``/v1/models``; an alias is there once one of its models is."""
        if not self._models:
            raise _starting("no worker is ready yet")
        entries = [model.listing() for model in self._models.values()]
        return entries + [
            self._alias_listing(name, known)
            for name, targets in sorted(self._aliases.items())
            if (known := self._known(targets))
        ]

    def listing(self, name: str) -> dict[str, Any]:
        """The entry of one name. Raises as :meth:`resolve` does."""
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
        """Calls wait for a worker that was lost just now, and not for one that has long been away."""
        if not model.workers or model.drained:
            return
        absent_s = min(map(self._absent_s, model.workers))
        if absent_s >= ABSENT_S:
            raise UnavailableError(
                f"no worker of {model.names[0]!r} has answered for {absent_s:.0f} s",
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
