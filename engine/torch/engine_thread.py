"""Runs an engine in a separate thread, with a thread-safe interface.

Requests and cancellations go into an inbox that the thread empties between two steps; ``on_events``
is called with events in the engine's thread. The queue is bounded. A failed forward pass fails the
sequences in it; after three consecutive failures the thread ends, and ``failure`` has the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from fairserve.engine.torch.engine import Engine, EngineStats
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import EngineEvent, Failed
from fairserve.engine.torch.host_threads import apart
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.page_changes import PageChanges
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.scheduling.base import LocalScheduler

_log = logging.getLogger(__name__)
_FAILURES_IN_A_ROW = 3
_BLOCKED_WAIT_S = 0.01
"""Pause while calls wait and none runs, which happens only if the scheduler holds calls back."""


class QueueFullError(Exception):
    """The queue has reached its bound; retry later."""


class EngineStoppedError(Exception):
    """The engine's thread has ended."""


class EngineThread:
    """Owner of an engine and its thread. ``submit``, ``cancel`` and ``stats`` are thread-safe.

    ``max_queue`` bounds the sequences that wait for admission. ``page_changes`` collects the
    changes of the prefix cache and is flushed after each step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: LocalScheduler,
        options: EngineOptions,
        max_queue: int,
        on_events: Callable[[list[EngineEvent]], None],
        page_changes: PageChanges | None = None,
    ) -> None:
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}; it must be at least 1")
        self.failure: str | None = None
        self.max_queue = max_queue
        self._engine = apart(lambda: Engine(loaded, scheduler, options, on_events))
        self.capacity_tokens = self._engine.capacity_tokens
        self.max_model_len = self._engine.max_model_len
        self._on_events = on_events
        self._page_changes = page_changes
        if page_changes is not None:
            page_changes.follow(self._engine.cache.trie)
        self._wakeup = threading.Condition()
        # The attributes below are guarded by the condition's lock.
        self._added: list[SequenceRequest] = []
        self._cancelled: list[str] = []
        self._stopping = False
        self._stats = self._engine.stats()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step and wait for it; running sequences are dropped."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Return whether the engine is running."""
        return self.failure is None and self._thread.is_alive()

    def submit(self, requests: list[SequenceRequest]) -> None:
        """Queue the sequences of one call, all or none.

        Raises QueueFullError, and EngineStoppedError if the thread has ended.
        """
        with self._wakeup:
            if self._stopping or not self.is_alive:
                raise EngineStoppedError(self.failure or "the engine is not running")
            waiting = self._stats.waiting + len(self._added)
            if waiting + len(requests) > self.max_queue:
                raise QueueFullError(f"{waiting} sequences wait; the limit is {self.max_queue}")
            self._added += requests
            self._wakeup.notify()

    def cancel(self, sequence_ids: Iterable[str]) -> None:
        """End sequences before the next step; they emit no event after that."""
        with self._wakeup:
            self._cancelled += sequence_ids
            self._wakeup.notify()

    def stats(self) -> EngineStats:
        """Return gauges and counters of the last step; sequences in the inbox count as waiting."""
        with self._wakeup:
            return replace(self._stats, waiting=self._stats.waiting + len(self._added))

    def _main(self) -> None:
        try:
            self._loop()
        except Exception as error:
            _log.exception("the engine stopped")
            self._give_up(f"the engine stopped: {error}")

    def _loop(self) -> None:
        engine = self._engine
        failures = 0
        progress = True
        while True:
            if self._page_changes is not None:
                self._page_changes.flush()
            with self._wakeup:
                self._stats = engine.stats()
                while not (self._added or self._cancelled or self._stopping or engine.has_work):
                    self._wakeup.wait()
                if not (progress or self._added or self._cancelled or self._stopping):
                    self._wakeup.wait(_BLOCKED_WAIT_S)
                if self._stopping:
                    return
                added, self._added = self._added, []
                cancelled, self._cancelled = self._cancelled, []
                # Until the snapshot of the next step, sequences just taken from the inbox count as
                # waiting.
                self._stats = replace(self._stats, waiting=self._stats.waiting + len(added))
            for request in added:
                self._add(request)
            for sequence_id in cancelled:
                engine.cancel(sequence_id)
            try:
                progress = engine.step()
                failures = 0
            except Exception:
                failures += 1
                _log.exception("a forward pass failed (%d in a row)", failures)
                if failures == _FAILURES_IN_A_ROW:
                    raise

    def _add(self, request: SequenceRequest) -> None:
        try:
            self._engine.add(request)
        except ValueError as error:
            self._on_events([Failed(request.sequence_id, str(error))])

    def _give_up(self, message: str) -> None:
        with self._wakeup:
            self.failure = message
            added, self._added = self._added, []
        self._on_events([Failed(request.sequence_id, message) for request in added])
        self._engine.fail_all(message)
        with self._wakeup:
            self._stats = self._engine.stats()
