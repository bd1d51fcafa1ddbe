"""One live run: its calls, their stages and parents, and what its next call would follow.

A stage is 1 + the longest path from a root. A call that names no parents is placed by what it says and
when it comes (with ``infer``; without, it is a root):

- It continues the call whose conversation and answer it repeats, or that asked for the tools whose
  results it brings (:mod:`fairserve.interactions.conversation`). What that call set going and what has
  ended meanwhile, sub-agents for example, comes before it, too.
- Otherwise it follows what has ended, and calls that overlap are parallel.

State is compact, since there are many runs: of a call its id, an integer each for its stage and its
parents, and twelve bytes for each key of its answer. Attaching is O(parents) and, for a conversation
that is continued, a scan of the run's keys in C and of the calls since (``SINCE_CALLS`` at most).

Weakness: two conversations of one run that only tell each other by time look as if they followed one
another; a call whose parents are many more than ``MOST_PARENTS`` is given the latest of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from struct import Struct
from typing import Any, Literal, NamedTuple

from fairserve.interactions.call import Call

RunState = Literal["open", "under_way", "complete", "cancelled", "aborted", "expired"]
WasteCause = Literal["", "throttled", "cancelled", "failed", "expired"]

MOST_PARENTS = 64
"""Of a call that names none."""
_HALF = 32
_LIVE = 1 << _HALF - 1
_STAGE = _LIVE - 1
_KEY = Struct("<QI")
SINCE_CALLS = 256
"""If more calls came since the one that is continued, nothing is sought between them."""


class RestoredCall(NamedTuple):
    """A call of a run that is restored; it has ended."""

    call_id: str
    parents: tuple[str, ...]
    tokens: int
    """What it used in all."""
    outcome: str = "completed"
    """As in scheduling.events, but never refused."""
    ended_age_s: float = 0.0
    """Seconds since its end."""


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """A run that was open before a restart, with the calls that it had; none of them is live."""

    interaction_id: str
    owner: tuple[str, str, str]
    """Tenant, app and user."""
    calls: tuple[RestoredCall, ...] = ()
    """In the order of their acceptance."""
    declared: bool = False
    sink: str | None = None
    """The call whose end completes the run."""
    closing: RunState | None = None
    """Its client had closed it while calls were live: it ends with this state."""
    opened_age_s: float = 0.0
    refused_age_s: float | None = None
    """Seconds since a call was last rejected while the run was in progress; None: none was."""

    @property
    def idle_age_s(self) -> float:
        """Seconds since anything happened to the run."""
        ages = [self.opened_age_s, *(call.ended_age_s for call in self.calls)]
        return min(ages if self.refused_age_s is None else [*ages, self.refused_age_s])

    @property
    def last_call(self) -> RestoredCall | None:
        """The call that ended last; of several at once the one accepted last."""
        return min(reversed(self.calls), key=lambda call: call.ended_age_s, default=None)


class Attachment(NamedTuple):
    """Where a call stands in its interaction."""

    stage: int
    under_way: bool
    immune: bool
    """Under way and within the immunity budget: it must not be throttled by load."""
    parents: tuple[int, ...] = ()
    """Numbers of calls of its run, given or inferred (:meth:`Run.name`)."""
    calls: int = 0
    """Accepted calls of its run before it."""
    tokens: int = 0
    """Used by those of them that have ended."""


class Run:
    """A live interaction. Changed by the tracker alone."""

    __slots__ = (
        "_calls",
        "_front",
        "_keys",
        "_parents",
        "app",
        "asks",
        "closing",
        "closing_final",
        "declared",
        "deepest",
        "interaction_id",
        "last_active_s",
        "live",
        "numbers",
        "opened_s",
        "single",
        "tenant",
        "tokens",
        "trouble",
        "user",
        "watched",
    )

    def __init__(self, interaction_id: str, owner: tuple[str, str, str], now_s: float) -> None:
        self.interaction_id = interaction_id
        self.tenant, self.app, self.user = owner
        self.opened_s = self.last_active_s = now_s
        self.single = False
        self.declared = False
        """A program's: it has that program's calls alone, and ends when the program says so."""
        self.live = 0
        """How many calls have not ended."""
        self.tokens = 0
        self.trouble: WasteCause = ""
        """Why the run would have failed if it ended now."""
        self.asks = False
        """The call that ended last asked for tools: somebody is to come back with what they say."""
        self.closing: RunState | None = None
        """It ends with this state as soon as its last live call has ended."""
        self.closing_final: str | None = None
        """The call whose end completes the run."""
        self.watched = False
        """It has an entry in the expiry heap."""
        self.deepest = -1
        """The call of the highest stage among those that have ended, the latest of them."""
        self.numbers: dict[str, int] = {}
        """Of the calls, by id, as they were accepted: parents have lower numbers. To be read only."""
        self._calls = array("Q", [0])
        """By number: where its parents begin in ``_parents``, and in the lower half its stage and
        whether it is live. The entry beyond the last call has the end of its parents."""
        self._parents = array("I")
        self._front: dict[int, None] = {}
        """Calls that have ended, of whose children none has; in the order of their ends."""
        self._keys = bytearray()
        """Each key by which a later call can tell that it continues one, and this one's number."""

    def __len__(self) -> int:
        """Number of accepted calls."""
        return len(self.numbers)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self.numbers

    @property
    def owner(self) -> tuple[str, str, str]:
        """Tenant, app and user."""
        return self.tenant, self.app, self.user

    @property
    def state(self) -> RunState:
        """Open or under way; a run that has ended is not kept."""
        return "under_way" if self.numbers else "open"

    @property
    def live_calls(self) -> list[str]:
        """Ids of the calls that have not ended, in the order of their acceptance. O(calls)."""
        return [
            name for name, entry in zip(self.numbers, self._calls, strict=False) if entry & _LIVE
        ]

    def _live_numbers(self) -> list[int]:
        return [number for number, entry in enumerate(self._calls) if entry & _LIVE]

    def name(self, number: int) -> str:
        """The id of a call. O(calls since)."""
        since = len(self.numbers) - 1 - number
        return next(islice(reversed(self.numbers), since, None))

    def parents(self, number: int) -> array[int]:
        """The numbers of a call's parents."""
        calls = self._calls
        return self._parents[calls[number] >> _HALF : calls[number + 1] >> _HALF]

    # --- where a call would stand -----------------------------------------------------------------

    def stage_after(self, parents: Iterable[int]) -> int:
        """The stage of a call with these parents."""
        calls = self._calls
        deepest = 0
        for number in parents:
            stage = calls[number] & _STAGE
            if stage > deepest:
                deepest = stage
        return deepest + 1

    def inferred_parents(self, call: Call) -> tuple[int, ...]:
        """What a call that names no parents follows."""
        front = self._front
        if not front:
            return ()
        continued = self._continued(call) if call.history or call.tool_results else ()
        if len(continued) == 1:
            return self._set_going_by(continued[0])
        if not continued:
            if len(front) <= MOST_PARENTS:
                return tuple(front)
            latest = set(islice(reversed(front), MOST_PARENTS - 1))
            return tuple(sorted(latest | {self.deepest}))
        found: dict[int, None] = {}
        for number in continued:
            found.update(dict.fromkeys(self._set_going_by(number)))
        return tuple(found)

    def _continued(self, call: Call) -> list[int]:
        """The call whose conversation this one goes on with, or those whose tools have answered."""
        for key in call.history:
            number = self._owner_of(key)
            if number is not None:
                return [number]
        found: dict[int, None] = {}
        for key in call.tool_results:
            number = self._owner_of(key)
            if number is not None:
                found[number] = None
        return list(found)

    def _owner_of(self, key: int) -> int | None:
        """The latest call that left this key."""
        keys, wanted = self._keys, key.to_bytes(8, "little")
        at = keys.rfind(wanted)
        while at % _KEY.size and at >= 0:  # it is not a key that is there, but parts of others
            at = keys.rfind(wanted, 0, at + 7)
        return None if at < 0 else _KEY.unpack_from(keys, at)[1]

    def _set_going_by(self, number: int) -> tuple[int, ...]:
        """What has ended and descends from a call, less what came before other such; or the call."""
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
        """A call was accepted."""
        numbers = self.numbers
        number = numbers[call_id] = len(numbers)
        self._calls[number] |= stage | _LIVE
        self._parents.extend(parents)
        self._calls.append(len(self._parents) << _HALF)
        self.live += 1

    def end(self, call_id: str, answers: Iterable[int] = ()) -> None:
        """A live call ended; ``answers`` are the keys of what it said. Raises KeyError."""
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
        for key in answers:
            self._keys += _KEY.pack(key, number)

    def restore_call(self, call: RestoredCall) -> None:
        """Add a call that has ended; a parent that is not here, or a call that is, is left out."""
        numbers = self.numbers
        if call.call_id not in numbers:
            parents = [numbers[parent] for parent in call.parents if parent in numbers]
            self.add(call.call_id, self.stage_after(parents), parents)
            self.end(call.call_id)
            self.tokens += call.tokens

    # --- state ------------------------------------------------------------------------------------

    def to_plain(self, now_s: float) -> dict[str, Any]:
        """As plain JSON values; ages, not times."""
        return {
            "id": self.interaction_id,
            "owner": list(self.owner),
            "opened_age_s": now_s - self.opened_s,
            "idle_age_s": now_s - self.last_active_s,
            "single": self.single,
            "declared": self.declared,
            "tokens": self.tokens,
            "trouble": self.trouble,
            "asks": self.asks,
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
        """The inverse of :meth:`to_plain`."""
        run = cls(plain["id"], tuple(plain["owner"]), now_s - plain["opened_age_s"])
        run.last_active_s = now_s - plain["idle_age_s"]
        for name in ("single", "tokens", "trouble", "asks", "closing", "closing_final", "deepest"):
            setattr(run, name, plain[name])
        run.declared = plain.get("declared", False)  # older states have no such runs
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
