"""One live run: its calls, their stages and parents, and the inferred parents of its next call.

A stage is 1 + the longest path from a root. A call that names no parents is placed by its content
and arrival (with ``infer``; otherwise it is a root):

- It continues the call whose conversation and answer it repeats, or that requested the tools whose
  results it contains (:mod:`fairserve.interactions.tracking.conversation`). Ended calls that
  descend from that call, for example those of sub-agents, become parents, too.
- Otherwise it follows all ended calls; calls that overlap are parallel.

Runs are numerous, so their state is compact: each call costs its id, an integer each for its stage
and its parents, and twelve bytes per key of its answer, at most ``MOST_KEYS`` in all. Attaching is
O(parents); continuing a conversation adds a scan of the run's keys in C, for each of a few keys or else
once for all, and of the calls since (at most ``SINCE_CALLS``).

Weakness: two conversations of one run that differ only in time seem to follow each other; a call
with more than ``MOST_PARENTS`` inferred parents keeps only the latest; a call whose keys are over
``MOST_KEYS`` is continued by time only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from struct import Struct
from typing import Any, Literal, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call

RunState = Literal["open", "under_way", "complete", "cancelled", "aborted", "expired"]
Owner = tuple[str, str, str]
"""Tenant, app and user."""
WasteCause = Literal["", "throttled", "cancelled", "failed", "expired"]

MOST_PARENTS = 64
"""Maximum number of inferred parents of a call."""
_HALF = 32
_LIVE = 1 << _HALF - 1
_STAGE = _LIVE - 1
_KEY = Struct("<QI")
SINCE_CALLS = 256
"""Maximum number of calls after the continued one that are searched for further parents."""
MOST_KEYS = 20_000
"""Maximum number of keys of a run, those of its latest calls: two for each of the most calls."""
SEARCHED_KEYS = 8
"""Number of keys of a call that are searched for one by one: most calls continue the last answer."""


class RestoredCall(NamedTuple):
    """An ended call of a restored run."""

    call_id: str
    parents: tuple[str, ...]
    tokens: int
    """Total tokens used."""
    outcome: str = "completed"
    """Outcome as in scheduling.events, never ``refused``."""
    ended_age_s: float = 0.0
    """Seconds since its end."""


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """A run that was open before a restart, with its calls, none of which is live."""

    interaction_id: str
    owner: Owner
    """Tenant, app and user."""
    calls: tuple[RestoredCall, ...] = ()
    """Calls in the order of acceptance."""
    declared: bool = False
    sink: str | None = None
    """The call whose end completes the run."""
    closing: RunState | None = None
    """State in which the client closed the run while calls were live; None if it did not."""
    opened_age_s: float = 0.0
    refused_age_s: float | None = None
    """Seconds since the last rejection of a call of the active run; None if none was rejected."""

    @property
    def idle_age_s(self) -> float:
        """Return the seconds since the last activity of the run."""
        ages = [self.opened_age_s, *(call.ended_age_s for call in self.calls)]
        return min(ages if self.refused_age_s is None else [*ages, self.refused_age_s])

    @property
    def last_call(self) -> RestoredCall | None:
        """Return the call that ended last; of simultaneous ones, the one accepted last."""
        return min(reversed(self.calls), key=lambda call: call.ended_age_s, default=None)


class Attachment(NamedTuple):
    """The place of a call in its interaction."""

    stage: int
    under_way: bool
    immune: bool
    """True if the run is active and within its immunity budget: overload limits do not apply."""
    parents: tuple[int, ...] = ()
    """Numbers of the parents within the run, given or inferred (:meth:`Run.names`)."""
    calls: int = 0
    """Calls of the run that were accepted before this one."""
    tokens: int = 0
    """Tokens used by the ended calls of the run."""
    reopens: Run | None = None
    """The ended run that the call reopens."""


class Run:
    """A live interaction; only the tracker changes it."""

    __slots__ = (
        "_calls",
        "_front",
        "_keys",
        "_parents",
        "app",
        "closing",
        "closing_final",
        "declared",
        "deepest",
        "due_s",
        "interaction_id",
        "last_active_s",
        "live",
        "numbers",
        "opened_s",
        "owner",
        "requested_tools",
        "single",
        "tenant",
        "tokens",
        "trouble",
        "user",
    )

    def __init__(self, interaction_id: str, owner: Owner, now_s: float) -> None:
        self.interaction_id = interaction_id
        self.owner = owner
        self.tenant, self.app, self.user = owner
        self.opened_s = self.last_active_s = now_s
        self.single = False
        self.declared = False
        """True for a program's run: it takes only calls of that program and ends with the program."""
        self.live = 0
        """Number of calls that have not ended."""
        self.tokens = 0
        self.trouble: WasteCause = ""
        """Cause of the waste if the run ended now; "" for none."""
        self.requested_tools = False
        """True if the call that ended last requested tools, so a call with the results is expected."""
        self.closing: RunState | None = None
        """State in which the run ends once its last live call has ended."""
        self.closing_final: str | None = None
        """The call whose end completes the run."""
        self.due_s: float | None = None
        """Time of the next check whether it has ended by idling; None if none is due."""
        self.deepest = -1
        """Number of the ended call with the highest stage, the latest of several; -1 for none."""
        self.numbers: dict[str, int] = {}
        """Numbers of the calls by id, in order of acceptance: parents have lower numbers. Read-only."""
        self._calls = array("Q", [0])
        """By number: in the upper half the start of the call's parents in ``_parents``, in the lower
        half its stage and a live flag. One more entry holds the end of the last call's parents."""
        self._parents = array("I")
        self._front: dict[int, None] = {}
        """Ended calls without an ended child, in the order of their ends."""
        self._keys = bytearray()
        """Keys by which a later call is recognised as a continuation, each with its call's number."""

    def __len__(self) -> int:
        """Return the number of accepted calls."""
        return len(self.numbers)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self.numbers

    @property
    def state(self) -> RunState:
        """Return whether the run is open or active; ended runs are not kept."""
        return "under_way" if self.numbers else "open"

    @property
    def live_calls(self) -> list[str]:
        """Return the ids of the calls that have not ended, in order of acceptance. O(calls)."""
        return [
            name for name, entry in zip(self.numbers, self._calls, strict=False) if entry & _LIVE
        ]

    def _live_numbers(self) -> list[int]:
        return [number for number, entry in enumerate(self._calls) if entry & _LIVE]

    def names(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the ids of calls. O(calls accepted after the first of them)."""
        calls = len(self.numbers)
        latest = tuple(islice(reversed(self.numbers), calls - min(numbers, default=calls)))
        return tuple([latest[calls - 1 - number] for number in numbers])

    def parents(self, number: int) -> array[int]:
        """Return the numbers of a call's parents."""
        calls = self._calls
        return self._parents[calls[number] >> _HALF : calls[number + 1] >> _HALF]

    # --- the place of a call ----------------------------------------------------------------------

    def stage_after(self, parents: Iterable[int]) -> int:
        """Return the stage of a call with these parents."""
        calls = self._calls
        deepest = 0
        for number in parents:
            stage = calls[number] & _STAGE
            if stage > deepest:
                deepest = stage
        return deepest + 1

    def inferred_parents(self, call: Call) -> tuple[int, ...]:
        """Return the parents of a call that names none."""
        front = self._front
        if not front:
            return ()
        continued = self._continued(call) if call.history or call.tool_results else ()
        if len(continued) == 1:
            return self._latest_descendants(continued[0])
        if not continued:
            if len(front) <= MOST_PARENTS:
                return tuple(front)
            latest = set(islice(reversed(front), MOST_PARENTS - 1))
            return tuple(sorted(latest | {self.deepest}))
        found: dict[int, None] = {}
        for number in continued[-MOST_PARENTS:]:
            found.update(dict.fromkeys(self._latest_descendants(number)))
        return tuple(found)[-MOST_PARENTS:]

    def _continued(self, call: Call) -> list[int]:
        """Return the continued call, or those whose tool results the call contains.

        Of the call that its answer names and the one that its prompt names, the later one has the longer
        conversation.
        """
        found = (
            next(self._owners_of(keys), None) for keys in (call.history, call.answered_prompts)
        )
        latest = max((number for number in found if number is not None), default=None)
        if latest is not None:
            return [latest]
        return list(dict.fromkeys(self._owners_of(call.tool_results)))

    def _owners_of(self, keys: Sequence[int]) -> Iterator[int]:
        """Yield the number of the latest call with each key that a call has."""
        for key in keys[:SEARCHED_KEYS]:
            number = self._owner_of(key)
            if number is not None:
                yield number
        if len(keys) > SEARCHED_KEYS:
            owners = dict(_KEY.iter_unpack(self._keys))
            yield from map(owners.__getitem__, filter(owners.__contains__, keys[SEARCHED_KEYS:]))

    def _owner_of(self, key: int) -> int | None:
        """Return the number of the latest call with this key."""
        keys, wanted = self._keys, key.to_bytes(8, "little")
        at = keys.rfind(wanted)
        while at % _KEY.size and at >= 0:  # the match spans two entries
            at = keys.rfind(wanted, 0, at + 7)
        return None if at < 0 else _KEY.unpack_from(keys, at)[1]

    def _latest_descendants(self, number: int) -> tuple[int, ...]:
        """Return the ended descendants of a call that have no ended child; without any, the call."""
        front = self._front
        calls = len(self.numbers)
        if number in front or calls - number > SINCE_CALLS:
            return (number,)
        descends = {number}
        for later in range(number + 1, calls):
            if not descends.isdisjoint(self.parents(later)):
                descends.add(later)
        found = [each for each in front if each in descends]
        return tuple(found[-MOST_PARENTS:]) or (number,)

    # --- changes ----------------------------------------------------------------------------------

    def add(self, call_id: str, stage: int, parents: Iterable[int]) -> None:
        """Add an accepted call."""
        numbers = self.numbers
        number = numbers[call_id] = len(numbers)
        self._calls[number] |= stage | _LIVE
        self._parents.extend(parents)
        self._calls.append(len(self._parents) << _HALF)
        self.live += 1

    def end(self, call_id: str, continuation_keys: Iterable[int] = ()) -> None:
        """End a live call; ``continuation_keys`` are the keys of its answer. Raises KeyError."""
        number, calls, front = self.numbers[call_id], self._calls, self._front
        entry = calls[number]
        if not entry & _LIVE:
            raise KeyError(call_id)
        calls[number] = entry ^ _LIVE
        self.live -= 1
        parents = self._parents
        for at in range(entry >> _HALF, calls[number + 1] >> _HALF):
            front.pop(parents[at], None)
        front[number] = None
        deepest = self.deepest
        if deepest < 0 or entry & _STAGE >= calls[deepest] & _STAGE:
            self.deepest = number
        for key in continuation_keys:
            self._keys += _KEY.pack(key, number)
        del self._keys[: max(0, len(self._keys) - MOST_KEYS * _KEY.size)]

    def withdraw(self, call_id: str) -> None:
        """Remove a live call if it was accepted last; else end it and free its id. Raises KeyError.

        O(1) if it was accepted last, else O(calls).
        """
        number, numbers, calls = self.numbers[call_id], self.numbers, self._calls
        if number < len(numbers) - 1:
            self.end(call_id)
            free = f"{call_id}~{number}"
            while free in numbers:
                free += "~"
            self.numbers = {free if name == call_id else name: at for name, at in numbers.items()}
            return
        if not calls[number] & _LIVE:
            raise KeyError(call_id)
        del numbers[call_id]
        del self._parents[calls[number] >> _HALF :]
        calls.pop()
        calls[number] = len(self._parents) << _HALF
        self.live -= 1

    def restore_call(self, call: RestoredCall) -> None:
        """Add a call that has ended; unknown parents and duplicate calls are ignored."""
        numbers = self.numbers
        if call.call_id not in numbers:
            parents = [numbers[parent] for parent in call.parents if parent in numbers]
            self.add(call.call_id, self.stage_after(parents), parents)
            self.end(call.call_id)
            self.tokens += call.tokens

    # --- state ------------------------------------------------------------------------------------

    def to_plain(self, now_s: float) -> dict[str, Any]:
        """Return the run as plain JSON values; ages, not times."""
        return {
            "id": self.interaction_id,
            "owner": list(self.owner),
            "opened_age_s": age_of(self.opened_s, now_s),
            "idle_age_s": age_of(self.last_active_s, now_s),
            "due_age_s": None if self.due_s is None else age_of(self.due_s, now_s),
            "single": self.single,
            "declared": self.declared,
            "tokens": self.tokens,
            "trouble": self.trouble,
            "requested_tools": self.requested_tools,
            "closing": self.closing,
            "closing_final": self.closing_final,
            "deepest": self.deepest,
            "calls": list(self.numbers),
            "stages": [entry & _STAGE for entry in self._calls[:-1]],
            "parents": [self.parents(number).tolist() for number in range(len(self))],
            "live": self._live_numbers(),
            "front": list(self._front),
            "keys": list(chain.from_iterable(_KEY.iter_unpack(self._keys))),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], now_s: float) -> Run:
        """Return the run of plain JSON values, the inverse of :meth:`to_plain`."""
        run = cls(plain["id"], tuple(plain["owner"]), time_of(plain["opened_age_s"], now_s))
        run.last_active_s = time_of(plain["idle_age_s"], now_s)
        due_age = plain["due_age_s"]
        run.due_s = None if due_age is None else time_of(due_age, now_s)
        for name in (
            "single",
            "tokens",
            "trouble",
            "requested_tools",
            "closing",
            "closing_final",
            "deepest",
            "declared",
        ):
            setattr(run, name, plain[name])
        for call_id, stage, parents in zip(
            plain["calls"], plain["stages"], plain["parents"], strict=True
        ):
            run.add(call_id, stage, parents)
        live = set(plain["live"])
        for number in range(run.live):
            if number not in live:
                run._calls[number] ^= _LIVE
        run.live = len(live)
        run._front = dict.fromkeys(plain["front"])
        for key, number in zip(plain["keys"][::2], plain["keys"][1::2], strict=True):
            run._keys += _KEY.pack(key, number)
        return run
