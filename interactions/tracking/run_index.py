"""Index of the runs that calls without a run id may join: by names and by answers.

A *name* is an id of a framework, such as a session's; it has one run at a time. An *answer* is the key
of a conversation that ends with it (:mod:`fairserve.interactions.tracking.conversation`), or of its
prompt alone if its content is not known. If two runs got the same answer to the same prompt, the key
names neither. An answer outlives its run, for a day: a late client of an ended run is not taken for one
of another run with the same conversation.

Everything belongs to one app and user. The entries of runs that can be found are bounded by ``entries``,
and shared by tenant, app and user. Once a run cannot be found any more, its names are gone, and of its
answers remain eight bytes each (:class:`GoneAnswers`). Each operation is one hash and a few look-ups.

Weakness: a conversation that was begun elsewhere (at another server, before a restart, from the
client's own cache of answers, or before the entry was evicted) is taken for the only live run that has
the same prompts and answers. A fork of a conversation belongs to its run. A user's flood of calls
evicts entries of its own; its next calls begin new runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any

import numpy as np

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.interactions.tracking.shares import Owner

CHECK_S = 10.0
"""Seconds between two looks whether the run of an entry can still be found."""
MOST_CHECKS = 256
"""Maximum entries of one tick: it takes less than a millisecond."""
GONE_PLACES = 1 << 18
"""Answers of runs that are gone: 2 MiB in all."""
RETENTION_S = 86_400
"""Seconds for which the answer of a run that is gone is known."""
_UNIT_S = 64
_UNITS = 0xFFFF
_SEVERAL = ""
"""Value of an answer that several runs got."""


class RunIndex:
    """Ids of runs by tenant, app, user and key. ``now_s`` is the caller's monotonic time."""

    def __init__(self, entries: int) -> None:
        self._runs: SharedTable[tuple[str, int], str] = SharedTable(entries)
        self._gone = GoneAnswers(GONE_PLACES)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._runs)

    def named(self, owner: Owner, name: int) -> str | None:
        """Return the id of the run that had a name last; the run may have ended."""
        return self._runs.get(_key(owner, "name", name))

    def answered(self, owner: Owner, scope: int, answer: int) -> str | None:
        """Return the id of the run that alone got an answer; the run may have ended."""
        found = self._runs.get(_key(owner, scope, answer))
        return None if found == _SEVERAL else found

    def name(self, owner: Owner, name: int, run_id: str, now_s: float) -> None:
        """Give a name to a run; a run that had it before loses it."""
        self._runs.put(owner, _key(owner, "name", name), run_id, now_s + CHECK_S)

    def answer(self, owner: Owner, scope: int, answer: int, run_id: str, now_s: float) -> None:
        """Add an answer of a run."""
        key = _key(owner, scope, answer)
        before = self._runs.get(key)
        if before is None and self._gone.has(key[1], now_s):
            before = _SEVERAL
        value = run_id if before in (None, run_id) else _SEVERAL
        self._runs.put(owner, key, value, now_s + CHECK_S)

    def expire(self, find: Callable[[str, str, float], object], now_s: float) -> None:
        """Remove old entries of runs that ``find`` (run, tenant, now) does not find any more."""
        oldest = islice(self._runs.items(), MOST_CHECKS)
        for owner, key, _, run_id in list(takewhile(lambda entry: entry[2] <= now_s, oldest)):
            if run_id != _SEVERAL and find(run_id, owner[0], now_s) is not None:
                self._runs.put(owner, key, run_id, now_s + CHECK_S)
            else:
                self._runs.pop(key)
                self._gone.add(key[1], now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the entries as plain JSON values; ages, not times."""
        runs = [
            [*owner, key, age_of(until_s, now_s), run_id]
            for owner, (_, key), until_s, run_id in self._runs.items()
        ]
        return {"runs": runs, "gone": self._gone.snapshot(now_s)}

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Add the entries of an earlier snapshot to an empty index."""
        for tenant, app, user, key, age, run_id in state["runs"]:
            self._runs.put((tenant, app, user), (tenant, key), run_id, time_of(age, now_s))
        self._gone.restore(state["gone"], now_s)


class GoneAnswers:
    """Hashes of the answers of runs that are gone, each in the one place that it can have.

    A hash displaces the one that has its place, so that memory is the same for any number of them. No
    value is kept: an answer that is here names no run. Each operation takes less than a microsecond.

    Weakness: a flood of calls displaces hashes of others, too. For those, a client that returns after
    its run is gone may join a newer run of the same user with the same conversation.
    """

    def __init__(self, places: int) -> None:
        """``places`` is a power of two. Memory is taken with the first hash."""
        self._places = places
        self._kept: memoryview | None = None
        """By place: the upper 48 bits of a hash, and the time in units of 64 s, modulo 48 days."""

    def add(self, digest: int, now_s: float) -> None:
        """Add the 64-bit hash of an answer."""
        self._keep(digest % self._places, digest & ~_UNITS | int(now_s) // _UNIT_S & _UNITS)

    def _keep(self, place: int, entry: int) -> None:
        if self._kept is None:
            self._kept = np.zeros(self._places, np.uint64).data
        self._kept[place] = entry

    def has(self, digest: int, now_s: float) -> bool:
        """Return whether a hash was added within a day, and not displaced."""
        if self._kept is None:
            return False
        kept = self._kept[digest % self._places]
        return not (kept ^ digest) & ~_UNITS and _age(kept, now_s) * _UNIT_S < RETENTION_S

    def snapshot(self, now_s: float) -> list[list[int]]:
        """Return place, upper bits and age of each hash."""
        if self._kept is None:
            return []
        places = np.flatnonzero(self._kept).tolist()
        found = [(place, self._kept[place]) for place in places]
        return [[place, kept & ~_UNITS, _age(kept, now_s)] for place, kept in found]

    def restore(self, state: list[list[int]], now_s: float) -> None:
        """Add the hashes of an earlier snapshot to an empty table."""
        for place, upper, age in state:
            self._keep(place, upper | int(now_s) // _UNIT_S - age & _UNITS)


def _age(kept: int, now_s: float) -> int:
    """Return how many units of time ago a hash was added."""
    return int(now_s) // _UNIT_S - kept & _UNITS


def _key(owner: Owner, scope: object, value: int) -> tuple[str, int]:
    tenant, app, user = owner
    text = f"{scope}\0{value}\0{app}\0{user}"  # only the user may have any characters
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return tenant, int.from_bytes(digest, "big")
