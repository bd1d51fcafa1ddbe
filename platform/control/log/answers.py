"""Answers to processes of the former version, which do not decide as the present speaker does.

In an upgrade a newer version takes the cell over while servers of the former one have calls. They write
their events into the log as before, and follow by answers
(:mod:`fairserve.platform.control.log.answered_calls`): the speaker writes what the cell decided about
their calls as entries of the same log. Whoever may speak collects the answers until it has read them, so
that another speaker continues with those that are missing. An answer travels as a map, so that another
version may have further fields.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallMessage,
    CallStep,
    Output,
)
from fairserve.platform.control.log.shared_cell import NO_ENTRY, Applied, EntryId
from fairserve.platform.control.log.wire import UnreadableEntryError
from fairserve.platform.control.messages import Attached, Cancel, Grant, RejectCall
from fairserve.scheduling.events import CallOutcome

OF_ENTRY = 100
"""Entries whose answers are written at once."""
ANSWERED_STEPS = ("accepted", "requeued", "rejected", "dropped", "ended")
"""Steps of a call that its server needs; a grant is an answer."""


class PlainError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels."""

    kind: str
    message: str
    param: str | None = None
    code: str = ""
    headers: dict[str, str] = {}
    details: dict[str, object] | None = None

    @classmethod
    def of(cls, error: Exception) -> PlainError:
        """Return the form of a FairServeError, a KeyError or a ValueError."""
        if isinstance(error, FairServeError):
            name, text = type(error).__name__, error.message
            return cls(name, text, error.param, error.code, error.headers, error.details)
        kind = KeyError if isinstance(error, KeyError) else ValueError
        return cls(kind.__name__, str(error.args[0]) if error.args else "")

    def error(self) -> Exception:
        """Return the error of an event."""
        if self.kind in ("KeyError", "ValueError"):
            return (KeyError if self.kind == "KeyError" else ValueError)(self.message)
        return self.of_call()

    def of_call(self) -> FairServeError:
        """Return the error of a call; one that this version does not know has the status 500."""
        known = {each.__name__: each for each in _kinds(FairServeError)}
        return known.get(self.kind, FairServeError)(
            self.message,
            param=self.param,
            code=self.code,
            headers=self.headers,
            details=self.details,
        )


def _kinds(kind: type[FairServeError]) -> Iterator[type[FairServeError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


class CallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output of the cell about a call; one of the fields that may be None is set."""

    record_id: str
    step: CallStep | None = None
    call_id: str = ""
    """Id of the call of a step; the cell may have renamed it."""
    outcome: CallOutcome = "refused"
    reason: str = ""
    grant: Grant | None = None
    rejection: RejectCall | None = None
    error: PlainError | None = None
    attached: Attached | None = None
    cancel: Cancel | None = None


class InvalidEvent(msgspec.Struct, frozen=True):
    """An event that was not applied: its place in a batch of a process, and the error."""

    process: str
    number: int
    place: int
    error: PlainError


class EntryAnswers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outputs and errors of one entry."""

    entry: str
    results: list[CallResult] = []
    invalid: list[InvalidEvent] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[EntryAnswers]).decode


def answer_bytes(answers: Sequence[EntryAnswers]) -> bytes:
    """Return an entry of answers."""
    return _encode(answers)


def answers_of(data: bytes) -> list[EntryAnswers]:
    """Return the answers of an entry. Raises UnreadableEntryError."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise UnreadableEntryError(f"answers of the log cannot be read: {error}") from error


class _Unread(NamedTuple):
    entry: EntryId
    answer: EntryAnswers


class AnswerBook:
    """The answers that a process has not read in the log, in their order."""

    def __init__(self) -> None:
        self.due = asyncio.Event()
        """Set when an answer was added."""
        self._unread: deque[_Unread] = deque()
        self._written = NO_ENTRY

    def __len__(self) -> int:
        """Number of entries whose answers were not read."""
        return len(self._unread)

    def took(
        self,
        entry: EntryId,
        applied: Applied,
        followed: Collection[str],
        process: str = "",
        number: int = 0,
        place: int = 0,
    ) -> None:
        """Add what followed from an event or a tick; ``followed`` are ids of calls to answer."""
        results = [each for output in applied.outputs for each in _results(output, followed)]
        if not results and not applied.follows:
            return
        if not self._unread or self._unread[-1].entry != entry:
            self._unread.append(_Unread(entry, EntryAnswers(str(entry), [], [])))
        answer = self._unread[-1].answer
        answer.results.extend(results)
        if applied.error is not None and applied.follows:
            problem = InvalidEvent(process, number, place, PlainError.of(applied.error))
            answer.invalid.append(problem)
        self.due.set()

    def read(self, data: bytes) -> None:
        """Drop the answers that were read in the log, and all to earlier entries.

        Answers are written in the order of their entries. Earlier ones that are still here were passed
        over, with the log before a state that this process took over.
        """
        last = max((EntryId.of(each.entry) for each in answers_of(data)), default=NO_ENTRY)
        while self._unread and self._unread[0].entry <= last:
            self._unread.popleft()

    def next(self) -> list[EntryAnswers]:
        """Return the next answers to be written; none if all were."""
        found = [each for each in self._unread if each.entry > self._written][:OF_ENTRY]
        if found:
            self._written = found[-1].entry
        return [each.answer for each in found]

    def write_again(self) -> None:
        """Write all answers again that were not read: it is not known which were written."""
        self._written = NO_ENTRY
        if self._unread:
            self.due.set()


def _results(output: Output, followed: Collection[str]) -> Iterator[CallResult]:
    match output:
        case CallChange(live, step, outcome, reason):
            if step in ANSWERED_STEPS and live.record_id in followed:
                call_id = live.call.call_id
                yield CallResult(live.record_id, step, call_id, outcome=outcome, reason=reason)
        case CallAnswer(record_id, answer) if record_id in followed:
            match answer:
                case Grant():
                    yield CallResult(record_id, grant=answer)
                case RejectCall():
                    yield CallResult(record_id, rejection=answer)
                case _:
                    yield CallResult(record_id, error=PlainError.of(answer))
        case CallMessage(record_id, message) if record_id in followed:
            if isinstance(message, Attached):
                yield CallResult(record_id, attached=message)
            else:
                yield CallResult(record_id, cancel=message)
