"""Orders the batches of a worker, detects gaps and restarts, and requests replays. No I/O.

Batches arrive live, numbered from 0, and by replays, which are requested at every connection and
every gap. A replay begins with the last batch that was applied: if the worker has a different batch
with that number, it has restarted, and the sequence starts over. During a replay live batches wait.

Batches that are no longer available are given up: the view of the cache is then incomplete
(``Begin(complete=False)``) until the worker clears its cache or restarts, or until a new connection
replays the missing batches. Memory: one payload, and during a replay ``max_waiting`` of at most
``MAX_WAITING_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of the live batches that wait for the end of a replay."""
MAX_FRUITLESS = 3
"""Number of consecutive replays without a missing batch after which they are given up."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Drop the view. ``complete``: the following batches describe the worker's whole cache."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Take:
    """Apply the next batch."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Request a replay from ``start`` on, in place of an earlier one."""

    start: int


Step = Begin | Take | Ask


class KvSequence:
    """Sequence of the batches of one worker. Every method returns the next steps in order.

    The caller reports answers to the latest :class:`Ask` only.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self.next = 0
        """Sequence number of the next batch to apply."""
        self.gaps = 0
        """Number of detected gaps."""
        self.restarts = 0
        """Number of detected restarts of the worker."""
        self._last: bytes | None = None
        """Batch before ``next``, if it was applied in this generation of the worker."""
        self._last_live: int | None = None
        """Sequence number of the last live batch of this connection."""
        self._begun: bool | None = None
        """``complete`` of the last :class:`Begin`; None before the first."""
        self._asked: int | None = None
        """First sequence number of the running replay."""
        self._answered = self._holes = self._progress = False
        """State of the running replay: it answered, batches were missing, it returned new ones."""
        self._fruitless = 0
        """Number of consecutive replays without a new batch."""
        self._waiting: list[tuple[int, bytes]] = []
        """Live batches that wait for the end of the replay."""
        self._waiting_bytes = 0
        """Their bytes, during a replay."""
        self._steps: list[Step] = []

    @property
    def replaying(self) -> bool:
        """Return whether a replay is running."""
        return self._asked is not None

    def connected(self) -> list[Step]:
        """Begin a connection, the first or a later one; batches may have been missed.

        Live batches of an earlier connection must not follow. Waiting ones are dropped, since they
        may belong to an earlier generation of the worker.
        """
        self._last_live = None
        self._waiting = []
        if not self._begun:  # batches that were given up may be available now
            self.next, self._last = 0, None
        self._ask()
        return self._done()

    def check(self) -> list[Step]:
        """Request one more replay, since the subscription may have started after the first one."""
        if self._asked is None:
            self._ask()
        return self._done()

    def live(self, sequence: int, payload: bytes) -> list[Step]:
        """Handle a published batch."""
        if self._last_live is not None and sequence <= self._last_live:
            self._restart()
        self._last_live = sequence
        if self._asked is not None:
            self._waiting.append((sequence, payload))
            self._waiting_bytes += len(payload)
            if len(self._waiting) > self._max_waiting or self._waiting_bytes > MAX_WAITING_BYTES:
                self._fail()
        elif sequence == self.next:
            self._take(sequence, payload)
        elif sequence > self.next:
            self.gaps += 1
            self._waiting.append((sequence, payload))
            self._ask()
        return self._done()

    def replayed(self, sequence: int, payload: bytes) -> list[Step]:
        """Handle a batch of the replay."""
        if self._asked is not None and not self._holes:
            first, self._answered = not self._answered, True
            checked = first and self._last is not None
            if sequence < self.next:
                if checked and (sequence, payload) != (self._asked, self._last):
                    self._restart()
            elif sequence == self.next and not checked:
                self._progress = True
                self._take(sequence, payload)
            elif first:  # the batches up to here are no longer available
                self._progress = True
                self._give_up(sequence)
                self._take(sequence, payload)
            else:
                self._holes = True
        return self._done()

    def ended(self) -> list[Step]:
        """End the replay."""
        if self._asked is None:
            return []
        if self._last is not None and not self._answered:
            self._restart()  # the worker does not know the batch applied last
            return self._done()
        if not self._begun and not self._answered and self.next == 0:
            self._begin(complete=True)  # nothing was published yet
        self._asked = None
        self._fruitless = 0 if self._progress else self._fruitless + 1
        if self._holes:
            if self._fruitless >= MAX_FRUITLESS:
                self._give_up(None)
            self._ask()
        else:
            self._take_waiting()
        return self._done()

    def failed(self) -> list[Step]:
        """Record that no replay is available; missing batches are given up."""
        if self._asked is not None:
            self._fail()
        return self._done()

    def lost(self) -> list[Step]:
        """Record a long time without a connection, after which the view is too old to be used."""
        if self._begun is not None:
            self._asked, self._waiting = None, []
            self._give_up(0)
        return self._done()

    # --- steps ------------------------------------------------------------------------------------

    def _done(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def _fail(self) -> None:
        self._asked = None
        self._fruitless = MAX_FRUITLESS
        self._give_up(self._waiting[0][0] if self._waiting else None)
        self._take_waiting()

    def _take_waiting(self) -> None:
        """Apply the waiting live batches; request a replay if batches before them are missing."""
        waiting, self._waiting = self._waiting, []
        for index, (sequence, payload) in enumerate(waiting):
            if sequence < self.next:
                continue
            if sequence > self.next:
                if self._fruitless < MAX_FRUITLESS:
                    self._waiting = waiting[index:]
                    self._ask()
                    return
                self._give_up(sequence)
            self._take(sequence, payload)
        self._fruitless = 0

    def _ask(self) -> None:
        self._asked = self.next if self._last is None else self.next - 1
        self._waiting_bytes = sum(len(payload) for _, payload in self._waiting)
        self._answered = self._holes = self._progress = False
        self._steps.append(Ask(self._asked))

    def _restart(self) -> None:
        """Start over: the worker restarted with an empty cache, and its numbers begin at 0."""
        self.restarts += 1
        self.next, self._last, self._last_live = 0, None, None
        self._waiting = []
        self._begin(complete=True)
        self._ask()

    def _give_up(self, sequence: int | None) -> None:
        """Give up the batches before this one; None: before the next one that arrives."""
        if sequence is not None:
            self.next = sequence
        self._last = None
        self._begin(complete=False)

    def _begin(self, *, complete: bool) -> None:
        self._begun = complete
        self._steps.append(Begin(complete))

    def _take(self, sequence: int, payload: bytes) -> None:
        if not self._begun and (sequence == 0 or self._begun is None):
            self._begin(complete=sequence == 0)  # there is nothing before number 0
        self.next, self._last = sequence + 1, payload
        self._steps.append(Take(sequence, payload))
