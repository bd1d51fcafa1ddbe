"""The entries of a cell's log as bytes: batches of events, and ticks.

An event travels as a map of the fields that differ from their defaults, with the name of its class: a
version that has a further field reads the entries of one that lacks it. A prompt travels as the keys of
its blocks, never as tokens: equal seeds of all processes make them comparable, and no text can be read
from them. Cost of a call's submission: about 15 us to write and 25 us to read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, get_type_hints

import msgspec

from fairserve.interactions.call import Call
from fairserve.platform.control import cell_events as ce
from fairserve.platform.control.messages import Cancel, Progress, Release, Submit
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.throttling.quotas.price import TokenPrice

EVENTS: tuple[type[Any], ...] = (
    Submit,
    Progress,
    Release,
    Cancel,
    ce.RunRestored,
    ce.SystemChanged,
    ce.PricesChanged,
    ev.AppChanged,
    ev.TenantChanged,
    ev.UserChanged,
    ev.UserStopped,
    ev.ContractChanged,
    ev.BudgetSpent,
    ev.CallMoved,
    ev.InteractionOpened,
    ev.InteractionClosed,
    ev.WorkerJoined,
    ev.WorkerReported,
    ev.WorkerDraining,
    ev.WorkerUndrained,
    ev.WorkerLost,
    ev.WorkerCached,
    ev.WorkerEvicted,
    ev.WorkerCacheReset,
)
"""The events that processes put into the log. Time passes by ticks; what follows from an event, such as
the arrival of a call at the dispatcher, is derived by each process."""


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """Events of one process, in their order: one entry of the log."""

    process: str
    """Id of the process, new at each start."""
    number: int
    """1 for its first batch, and one more for each that follows. A repeated batch has its number."""
    events: list[msgspec.Raw]
    """Events as :func:`event_bytes` returns them."""
    follows: bool = False
    """True if the process does not decide as the others do, and needs their answers
    (:mod:`fairserve.platform.control.log.answers`)."""


class LogTick(msgspec.Struct, array_like=True, frozen=True):
    """Time has passed. The speaker writes ticks, which are its heartbeat, too."""

    speaker: str
    checked: str
    """Id of the last tick that it has read; empty if it has read none."""
    check: int
    """Check sum of its outputs before that one (:attr:`SharedCell.check`)."""
    stored: str
    """Id of an entry up to which all rows are in the database; empty if unknown."""
    full: str = ""
    """Why nothing new is accepted; empty if it is."""


# --- plain forms of what is not plain ---------------------------------------------------------------


def _keys_to_bytes(keys: Sequence[int] | None) -> bytes | None:
    return None if keys is None else array("Q", keys).tobytes()


def _keys_from_bytes(data: bytes | None) -> array[int] | None:
    if data is None:
        return None
    keys = array("Q")
    keys.frombytes(data)
    return keys


def _book_to_rows(book: PriceBook) -> list[tuple[str, float, TokenPrice]]:
    return list(book.items())


_Convert = Callable[[Any], Any]
_SPECIAL: Mapping[Any, tuple[Any, _Convert, _Convert]] = {
    # a field's own type: the type that travels, and the two conversions
    Sequence[int] | None: (bytes | None, _keys_to_bytes, _keys_from_bytes),
    PriceBook: (list[tuple[str, float, TokenPrice]], _book_to_rows, PriceBook),
}
_LEFT_OUT = frozenset({"token_ids"})


class _Form:
    """The form of one class of events: a struct with its fields, and the conversions of some."""

    def __init__(self, kind: type[Any], forms: Mapping[type[Any], _Form]) -> None:
        self.kind = kind
        hints = get_type_hints(kind)
        known = [each for each in fields(kind) if each.init and each.name not in _LEFT_OUT]
        self._names = tuple(each.name for each in known)
        self._special: list[tuple[str, _Convert, _Convert]] = []
        described = []
        for each in known:
            hint = hints[each.name]
            if hint in forms:
                form = forms[hint]
                self._special.append((each.name, form.plain, form.event))
                hint = form.struct
            elif hint in _SPECIAL:
                hint, to_plain, from_plain = _SPECIAL[hint]
                self._special.append((each.name, to_plain, from_plain))
            described.append(_described(each, hint))
        self.struct: Any = msgspec.defstruct(
            kind.__name__, described, tag=kind.__name__, omit_defaults=True, kw_only=True
        )

    def plain(self, event: Any) -> msgspec.Struct:
        values = {name: getattr(event, name) for name in self._names}
        for name, to_plain, _ in self._special:
            values[name] = to_plain(values[name])
        made: msgspec.Struct = self.struct(**values)
        return made

    def event(self, plain: Any) -> Any:
        values = {name: getattr(plain, name) for name in self._names}
        for name, _, from_plain in self._special:
            values[name] = from_plain(values[name])
        return self.kind(**values)


def _described(each: Field[Any], hint: Any) -> Any:
    if each.default is not MISSING:
        return (each.name, hint, each.default)
    if each.default_factory is not MISSING:
        return (each.name, hint, msgspec.field(default_factory=each.default_factory))
    return (each.name, hint)


_CALL = {Call: _Form(Call, {})}
_FORMS = {kind: _Form(kind, _CALL) for kind in EVENTS}
_KINDS = {form.struct: form for form in _FORMS.values()}


_EVENT: Any = reduce(or_, _KINDS)
_EVENTS: Any = list[_EVENT]
_PlainBatch: Any = msgspec.defstruct(
    "_PlainBatch",
    [("process", str), ("number", int), ("events", _EVENTS), ("follows", bool, False)],
    array_like=True,
)
"""A batch with the types of its events, for the decoder."""


class ReadBatch(NamedTuple):
    """A batch as it was read; its fields are those of :class:`EventBatch`."""

    process: str
    number: int
    events: list[ce.CellEvent]
    follows: bool


_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(_EVENT).decode
_decode_batch = msgspec.msgpack.Decoder(_PlainBatch).decode
_decode_head = msgspec.msgpack.Decoder(EventBatch).decode
_decode_tick = msgspec.msgpack.Decoder(LogTick).decode


class UnreadableEntryError(Exception):
    """An entry of the log is of another version. Who cannot read one may not apply later ones."""


class UnsharedEventError(ValueError):
    """An event cannot be written to the log. The message says which and why."""


def event_bytes(event: ce.CellEvent) -> msgspec.Raw:
    """Return an event as it travels.

    Raises UnsharedEventError for a class that is not shared, for a number over 64 bits, for text with
    half of a surrogate pair, and for a value of another type than its field's.
    """
    name = type(event).__name__
    form = _FORMS.get(type(event))
    if form is None:
        raise UnsharedEventError(f"{name} is not an event that processes share")
    try:
        data = _encode(form.plain(event))
        _decode_event(data)  # who cannot read one leaves the cell
        return msgspec.Raw(data)
    except (OverflowError, TypeError, ValueError) as error:
        raise UnsharedEventError(f"{name} cannot be written to the log: {error}") from error


def batch_bytes(batch: EventBatch) -> bytes:
    """Return an entry of events."""
    return _encode(batch)


def batch_of(data: bytes) -> ReadBatch:
    """Return the batch of an entry. Raises UnreadableEntryError."""
    try:
        plain = _decode_batch(data)
        events = [_KINDS[type(each)].event(each) for each in plain.events]
        return ReadBatch(plain.process, plain.number, events, plain.follows)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise UnreadableEntryError(f"an entry of the log cannot be read: {error}") from error


def head_of(data: bytes) -> tuple[str, int]:
    """Return process and number of an entry whose events need not be known here.

    Raises UnreadableEntryError.
    """
    try:
        head = _decode_head(data)
    except msgspec.MsgspecError as error:
        raise UnreadableEntryError(f"an entry of the log cannot be read: {error}") from error
    return head.process, head.number


def tick_bytes(tick: LogTick) -> bytes:
    """Return an entry of a tick."""
    return _encode(tick)


def tick_of(data: bytes) -> LogTick:
    """Return the tick of an entry. Raises UnreadableEntryError."""
    try:
        return _decode_tick(data)
    except msgspec.MsgspecError as error:
        raise UnreadableEntryError(f"a tick of the log cannot be read: {error}") from error
