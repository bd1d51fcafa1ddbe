"""Pools of workers by model, with the model's context length and tokenizer.

LoRA adapters that a worker lists are served as models of their own in the pool of their base model.
A pool is created with its first worker. Its tokenizer is loaded in a thread, after which the model is
served; other models do not wait for it. The tokenizer is the one that the fleet configures for the
model, else the setting ``model`` (for embedded workers and those of ``worker_urls``), else the ``root``
that the worker reports, else the model's name, as a folder or hub id. If none of them is on this host,
workers with ``/tokenize`` count prompts until a tokenizer has been fetched from the hub.

Weakness: if neither is available, tokens are estimated from bytes. The model is served, because its
worker counts by itself; but token limits are approximate, and the router cannot match the KV events
of the worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from fairserve.engine.torch.builtin_model import (
    BUILTIN_MODEL_NAME,
    builtin_name,
    ensure_builtin_model,
)
from fairserve.engine.wire.base import WorkerFacts
from fairserve.engine.wire.tasks import TASKS
from fairserve.interactions.call import TokenIds
from fairserve.platform.base.bulkhead import TurnThreads
from fairserve.platform.base.clock import utc_s
from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.fleet.fleet import Desired
from fairserve.platform.fleet.models import SHOWN_NAMES, Models, ServedModel
from fairserve.platform.fleet.prompts.reader import (
    BytesCounter,
    PromptCounter,
    PromptReader,
    load_counter,
)
from fairserve.platform.fleet.prompts.tokenizer_files import NoTokenizerError
from fairserve.platform.fleet.prompts.worker import WorkerPromptReader
from fairserve.platform.fleet.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)

UNKNOWN_CONTEXT = 1 << 31
LOCAL_SOURCES = ("embedded", "settings")
"""Worker kinds whose model the setting ``model`` names."""
MISSING_S = 600.0
LARGE_PROMPT_THREADS = 1
"""Threads for the large prompts of all models: one, so that other work has a core."""
"""Seconds for which a failed tokenizer lookup is cached."""
MAX_MISSING = 256
MAX_ADAPTERS = 1000
"""LoRA adapters of one model that are served; the others are not."""


class PoolLoad(Protocol):
    """Loads a tokenizer; see :func:`~fairserve.platform.fleet.prompts.reader.load_counter`."""

    def __call__(self, name: str, *, fetch: bool, chat: bool = True) -> PromptCounter:
        """Return the counter of a tokenizer. Raises NoTokenizerError.

        With ``chat`` it must have a chat template.
        """
        ...


TokenizeAt = Callable[[Collection[str], Mapping[str, Any]], Awaitable[TokenIds]]
"""Tokenises at one of the workers, :meth:`~fairserve.platform.fleet.pool.WorkerPool.tokenize`."""


@dataclass(slots=True)
class _Pool:
    context_tokens: dict[str, int] = field(default_factory=dict)
    """By worker."""
    facts: dict[str, WorkerFacts] = field(default_factory=dict)
    """By worker."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters of its workers, or of the last one while there is none."""
    taken: frozenset[str] = frozenset()
    """Adapters among them that are not served, because another model or an alias has the name."""
    last_context_tokens: int = UNKNOWN_CONTEXT
    """Context of the last worker, used while there is none."""
    local: bool = False
    root: str = ""
    """Folder or hub id from which its first worker loaded the model."""
    tokenizing: set[str] = field(default_factory=set)
    """Workers of the pool with ``/tokenize``."""
    tokenizers: tuple[str, ...] = ()
    """Candidate names of its tokenizer, in order of preference."""
    not_here: bool = False
    """True if none of the candidates is on this host."""
    reader: PromptReader | WorkerPromptReader | None = None
    loading: asyncio.Task[None] | None = None
    created: int = field(default_factory=lambda: int(utc_s()))

    @property
    def generates(self) -> bool:
        """True if a worker generates: the tokenizer then needs a chat template."""
        return any("generate" in facts.tasks for facts in self.facts.values())


def tokenizer_names(model: str, root: str, named: str | None, local_model: str) -> tuple[str, ...]:
    """Return the candidate names of a model's tokenizer, in order of preference.

    ``named`` is that of the fleet, ``local_model`` the setting ``model`` if it is for this model.
    """
    if named is not None:
        return (named,)
    if local_model:
        return (builtin_name(local_model) or local_model,)
    return tuple(dict.fromkeys(name for name in (root, model) if name))


class ModelPools:
    """Updates ``models`` as workers join and leave. Belongs to the event loop."""

    def __init__(
        self,
        models: Models,
        *,
        local_model: str = "",
        on_ready: Callable[[], None] | None = None,
        tokenize: TokenizeAt,
        load: PoolLoad = load_counter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``local_model`` is the setting ``model``; the first served model calls ``on_ready``."""
        self._models = models
        self._local_model = local_model
        expected = local_model or BUILTIN_MODEL_NAME
        self._local_tokenizer = builtin_name(expected) or expected
        self._on_ready = on_ready
        self._tokenize = tokenize
        self._load = load
        self._clock = clock
        self._missing: dict[tuple[str, bool, bool], float] = {}
        """Names without a tokenizer, here or at the hub, with or without a chat template, and the expiry
        of the cached result."""
        self._pools: dict[str, _Pool] = {}
        self._desired = Desired()
        self._draining: set[str] = set()
        self._problems: dict[str, str] = {}
        self._prefetched: asyncio.Task[PromptReader | None] | None = None
        self._large_prompts = TurnThreads(LARGE_PROMPT_THREADS, "large prompts")

    # --- workers ----------------------------------------------------------------------------------

    def worker_joins(self, spec: WorkerSpec, facts: WorkerFacts) -> None:
        """Add a worker with its facts. Raises ValueError if they contradict its specification."""
        try:
            model = self._model_of(spec, facts)
        except ValueError as error:
            self._problems[spec.worker_id] = str(error)
            raise
        self._problems.pop(spec.worker_id, None)
        self._draining.discard(spec.worker_id)
        pool = self._pools.setdefault(model, _Pool())
        cache_tokens = facts.kv_capacity_tokens or spec.kv_tokens
        bounds = [facts.context_tokens, cache_tokens if "generate" in facts.tasks else None]
        pool.context_tokens[spec.worker_id] = min(filter(None, bounds), default=UNKNOWN_CONTEXT)
        pool.facts[spec.worker_id] = facts
        self._leave(spec.worker_id, keep=model)  # it may have served another model before
        pool.root = pool.root or facts.root
        if facts.tokenizes:
            pool.tokenizing.add(spec.worker_id)
        else:
            pool.tokenizing.discard(spec.worker_id)
        worker = self._desired.workers.get(spec.worker_id)
        pool.local = pool.local or worker is None or worker.source in LOCAL_SOURCES
        self._publish(model)
        for other in [name for name, each in self._pools.items() if not each.context_tokens]:
            self._publish(other)  # its calls may have waited for this worker

    def _model_of(self, spec: WorkerSpec, facts: WorkerFacts) -> str:
        if not facts.models:
            raise ValueError("it serves no model")
        if spec.model and spec.model not in facts.models:
            known = ", ".join(facts.models)
            raise ValueError(f"it does not serve {spec.model!r}; it serves: {known}")
        model = facts.model or spec.model or facts.models[0]
        if model in self._desired.aliases:
            raise ValueError(f"it serves {model!r}, which is the name of an alias")
        return model

    def worker_drains(self, worker_id: str) -> None:
        """Stop new calls to the worker."""
        self._draining.add(worker_id)
        for model in self.models_of(worker_id):
            self._publish(model)

    def worker_undrains(self, worker_id: str) -> None:
        """Resume calls to a drained worker."""
        self._draining.discard(worker_id)
        for model in self.models_of(worker_id):
            self._publish(model)

    def worker_left(self, worker_id: str) -> None:
        """Remove a worker. Its model is dropped with the last worker, unless another is expected."""
        self._draining.discard(worker_id)
        self._problems.pop(worker_id, None)
        self._leave(worker_id)

    def _leave(self, worker_id: str, keep: str = "") -> None:
        for model, pool in list(self._pools.items()):
            if model == keep:
                continue
            pool.tokenizing.discard(worker_id)
            context_tokens = pool.context_tokens.pop(worker_id, None)
            if context_tokens is not None:
                pool.last_context_tokens = context_tokens
                del pool.facts[worker_id]
                self._publish(model)

    def _is_awaited(self, model: str) -> bool:
        """Return whether an absent worker serves the model, or may serve it because it never joined.

        Calls wait for such a worker as for a lost one.
        """
        return any(
            worker.spec.model == model
            or not (worker.spec.model or self.models_of(worker.spec.worker_id))
            for worker in self._desired.workers.values()
            if not worker.drained
        )

    def models_of(self, worker_id: str) -> list[str]:
        """Return the model of a worker that has joined once; else an empty list."""
        return [name for name, pool in self._pools.items() if worker_id in pool.context_tokens]

    def problem_of(self, worker_id: str) -> str:
        """Return the reason why a worker cannot join; empty if there is none."""
        return self._problems.get(worker_id, "")

    def loading_of(self, worker_id: str) -> str:
        """Return the reason why a worker's model is not served yet; empty if it is."""
        for model in self.models_of(worker_id):
            if self._pools[model].reader is None:
                names = " or ".join(map(repr, self._pools[model].tokenizers))
                return f"the tokenizer of {model!r} is being loaded from {names}"
        return ""

    def workers(self) -> Mapping[str, Collection[str]]:
        """Return all workers of each model, including draining ones."""
        return {name: tuple(pool.context_tokens) for name, pool in self._pools.items()}

    # --- the fleet --------------------------------------------------------------------------------

    def set_fleet(self, desired: Desired) -> None:
        """Apply another fleet: aliases, tokenizers, and expected models."""
        self._desired = desired
        self._models.set_aliases({name: alias.targets for name, alias in desired.aliases.items()})
        for model in list(self._pools):
            self._publish(model)
        self._publish_expected()

    def prefetch(self) -> None:
        """Start loading the local model's tokenizer, in parallel with the start of its workers."""
        self._prefetched = asyncio.create_task(self._fetch((self._local_tokenizer,)))

    async def close(self) -> None:
        """Stop loading and counting."""
        tasks = [pool.loading for pool in self._pools.values() if pool.loading is not None]
        others = [self._prefetched] if self._prefetched is not None else []
        for task in (*tasks, *others):
            task.cancel()
        await asyncio.gather(*tasks, *others, return_exceptions=True)
        for pool in self._pools.values():
            if pool.reader is not None:
                pool.reader.close()
        self._large_prompts.shutdown(wait=False, cancel_futures=True)

    # --- served models ----------------------------------------------------------------------------

    def _publish(self, model: str) -> None:
        pool = self._pools[model]
        if not pool.context_tokens and not self._is_awaited(model):
            # The old reader is not closed: its threads end after its last call.
            if pool.loading is not None:
                pool.loading.cancel()
            del self._pools[model]
            self._models.drop(model)
            self._publish_expected()
            return
        tokenizers = self._tokenizers_of(model, pool)
        if tokenizers != pool.tokenizers or (pool.reader is None and pool.loading is None):
            pool.tokenizers, pool.not_here = tokenizers, False
            if pool.loading is not None:
                pool.loading.cancel()
            pool.loading = asyncio.create_task(self._read(model, pool), name=f"tokenizer {model}")
        self._publish_expected()
        if pool.not_here and pool.tokenizing and (pool.reader is None or not pool.reader.exact):
            pool.reader = WorkerPromptReader(model, partial(self._tokenize, pool.tokenizing))
        if pool.reader is None:
            return
        first = not len(self._models)
        base = self._served(model, pool, frozenset(pool.facts))
        if pool.local and self._local_model not in ("", model):
            base = replace(base, names=(model, self._local_model))
        self._models.serve(base, self._served_adapters(base, pool))
        if first and self._on_ready is not None:
            # Runs after the worker that just reported its facts has joined.
            asyncio.get_running_loop().call_soon(self._on_ready)
            self._on_ready = None

    def _served_adapters(self, base: ServedModel, pool: _Pool) -> Iterable[ServedModel]:
        """Yield the adapters of a pool whose names are free, each with the workers that list it."""
        if pool.facts:
            pool.adapters = frozenset().union(*(each.adapters for each in pool.facts.values()))
        model = base.worker_name
        others = {each.worker_name for each in self._models.served() if each.base != model}
        taken = pool.adapters & (others | self._pools.keys() | self._desired.aliases.keys())
        if taken - pool.taken:
            names = ", ".join(sorted(taken)[:SHOWN_NAMES])
            logger.warning(
                "adapters of %s are not served, as other models or aliases have their names: %s",
                model,
                names,
            )
        pool.taken = taken
        named = (each for each in sorted(pool.adapters - taken) if len(each) <= WIDE_ID_CHARS)
        for name in islice(named, MAX_ADAPTERS):
            holders = {each for each, facts in pool.facts.items() if name in facts.adapters}
            yield replace(self._served(name, pool, frozenset(holders)), base=model)

    def _served(self, name: str, pool: _Pool, everybody: frozenset[str]) -> ServedModel:
        """Return a model that ``everybody`` serves, drained or not."""
        assert pool.reader is not None, "a model is served once its prompts are read"
        workers, drained = everybody - self._draining, everybody & self._draining
        bounds = [pool.context_tokens[each] for each in everybody]
        return ServedModel(
            (name,),
            name,
            min(bounds, default=pool.last_context_tokens),
            pool.reader,
            workers,
            pool.created,
            drained=drained,
            kinds=frozenset(pool.facts[each].kind for each in workers),
            tasks=TASKS.intersection(*(pool.facts[each].tasks for each in workers or everybody)),
        )

    def _publish_expected(self) -> None:
        self._models.set_expected(self._desired.declared_models() | set(self._pools))

    def _tokenizers_of(self, model: str, pool: _Pool) -> tuple[str, ...]:
        named = self._desired.tokenizers.get(model)
        return tokenizer_names(model, pool.root, named, self._local_model if pool.local else "")

    async def _read(self, model: str, pool: _Pool) -> None:
        chat = pool.generates
        reader = await self._first(pool.tokenizers, fetch=False, chat=chat)
        if reader is None:
            pool.not_here = True
            if pool.tokenizing and self._pools.get(model) is pool:
                self._publish(model)  # its workers count until a tokenizer is fetched
            reader = await self._fetch(pool.tokenizers, chat=chat)
        if reader is None and pool.reader is None:
            logger.warning(
                "no tokenizer for %s: token counts are estimates; configure one for the model",
                model,
            )
            reader = PromptReader(BytesCounter(), large=self._large_prompts)
        pool.reader = reader or pool.reader
        pool.loading = None
        if self._pools.get(model) is pool:
            self._publish(model)

    async def _fetch(self, names: tuple[str, ...], *, chat: bool = True) -> PromptReader | None:
        """Return the reader of the first tokenizer on this host, else at the hub."""
        here = await self._first(names, fetch=False, chat=chat)
        return here or await self._first(names, fetch=True, chat=chat)

    async def _first(
        self, names: tuple[str, ...], *, fetch: bool, chat: bool
    ) -> PromptReader | None:
        prefetched = await self._take_prefetched(names)
        if prefetched is not None:
            return prefetched
        for name in names:
            counter = await self._counter(name, fetch=fetch, chat=chat)
            if counter is not None:
                return PromptReader(counter, name, self._large_prompts)
        return None

    async def _take_prefetched(self, names: tuple[str, ...]) -> PromptReader | None:
        """Return the prefetched reader if it is one of these; only once."""
        task = self._prefetched
        here = self._local_tokenizer in names
        if task is None or task is asyncio.current_task() or not here:
            return None
        self._prefetched = None
        return await task

    async def _counter(self, name: str, *, fetch: bool, chat: bool) -> PromptCounter | None:
        looked_up = (name, fetch, chat)
        if self._missing.get(looked_up, self._clock()) > self._clock():
            return None
        load: PoolLoad = self._load if chat else partial(self._load, chat=False)
        try:
            source = name
            if builtin_name(name) == name:
                source = str(await asyncio.to_thread(ensure_builtin_model, name))
            return await asyncio.to_thread(load, source, fetch=fetch)
        except (NoTokenizerError, OSError) as error:
            where = "the hub" if fetch else "this host"
            logger.info("no tokenizer %r at %s: %s", name, where, error)
            self._missing[looked_up] = self._clock() + MISSING_S
            if len(self._missing) > MAX_MISSING:
                del self._missing[next(iter(self._missing))]
            return None
