"""Which batches of a worker are new, which are missing, and when to begin anew. Pure.

Batches come live, numbered from 0, and by replays, which are asked for at every connection and at every
gap. A replay begins with the last batch that was taken: if the worker has another one under that number
it is another life of it, and everything begins again. While a replay runs, live batches wait.

What cannot be had any more is given up: the view of the cache is incomplete from then on
(``Begin(complete=False)``), until the worker clears its cache or starts again, or a new connection
brings what was missing. Bounded: one payload, and ``max_waiting`` of them during a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_WAITING = 10_000
MAX_FRUITLESS = 3
"""Replays that brought nothing although something is missing; then it is given up."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Forget what was taken so far. ``complete``: what comes now is all that the worker has cached."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Take:
    """The next batch."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a replay from here on; an earlier one is of no interest any more."""

    start: int


Step = Begin | Take | Ask


class KvSequence:
    """The batches of one worker. Every method returns what is to be done, in order.

    The caller reports the answers of the latest :class:`Ask` only.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self.next = 0
        """The sequence number that is due."""
        self.gaps = 0
        """Times that a batch was missing."""
        self.restarts = 0
        """Times that another life of the worker was found."""
        self._last: bytes | None = None
        """The batch before ``next``, if it was taken in this life."""
        self._last_live: int | None = None
        """Of this connection."""
        self._begun: bool | None = None
        """How it was begun last; None: not yet."""
        self._asked: int | None = None
        """Where the replay under way was to begin."""
        self._answered = self._holes = self._progress = False
        """Of the replay under way: it answered, batches were missing in it, it brought some."""
        self._fruitless = 0
        """Replays in a row that brought nothing new."""
        self._waiting: list[tuple[int, bytes]] = []
        """Live batches, until the replay is over."""
        self._steps: list[Step] = []

    @property
    def replaying(self) -> bool:
        """Whether a replay is under way."""
        return self._asked is not None

    def connected(self) -> list[Step]:
        """The connection is there, for the first time or again: nobody knows what was missed.

        Live batches of an earlier connection must not follow, and those that wait are forgotten: they
        may be of another life.
        """
        self._last_live = None
        self._waiting = []
        if not self._begun:  # what was given up may be had now
            self.next, self._last = 0, None
        self._ask()
        return self._done()

    def check(self) -> list[Step]:
        """Ask once more: the subscription may have come later than the replay after the connection."""
        if self._asked is None:
            self._ask()
        return self._done()

    def live(self, sequence: int, payload: bytes) -> list[Step]:
        """A published batch came."""
        if self._last_live is not None and sequence <= self._last_live:
            self._restart()
        self._last_live = sequence
        if self._asked is not None:
            self._waiting.append((sequence, payload))
            if len(self._waiting) > self._max_waiting:
                self._fail()
        elif sequence == self.next:
            self._take(sequence, payload)
        elif sequence > self.next:
            self.gaps += 1
            self._waiting.append((sequence, payload))
            self._ask()
        return self._done()

    def replayed(self, sequence: int, payload: bytes) -> list[Step]:
        """A batch of the replay came."""
        if self._asked is not None and not self._holes:
            first, self._answered = not self._answered, True
            checked = first and self._last is not None
            if sequence < self.next:
                if checked and (sequence, payload) != (self._asked, self._last):
                    self._restart()
            elif sequence == self.next and not checked:
                self._progress = True
                self._take(sequence, payload)
            elif first:  # the batches up to here are no longer there
                self._progress = True
                self._give_up(sequence)
                self._take(sequence, payload)
            else:
                self._holes = True
        return self._done()

    def ended(self) -> list[Step]:
        """The replay is over."""
        if self._asked is None:
            return []
        if self._last is not None and not self._answered:
            self._restart()  # even the batch that was taken last is unknown there
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
            self._go_on()
        return self._done()

    def failed(self) -> list[Step]:
        """There is no replay to be had: what is missing stays so."""
        if self._asked is not None:
            self._fail()
        return self._done()

    def lost(self) -> list[Step]:
        """There was no connection for long: what was told so far is too old to be believed."""
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
        self._go_on()

    def _go_on(self) -> None:
        """Take the live batches that waited; if others are missing before them, ask once more."""
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
        self._answered = self._holes = self._progress = False
        self._steps.append(Ask(self._asked))

    def _restart(self) -> None:
        """Another life of the worker: its cache is empty, its numbers begin again."""
        self.restarts += 1
        self.next, self._last, self._last_live = 0, None, None
        self._waiting = []
        self._begin(complete=True)
        self._ask()

    def _give_up(self, sequence: int | None) -> None:
        """What is before this batch is missing; None: the next one that comes will do."""
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
