"""Index of the runs that calls without a run id may join: by names and by answers.

A *name* is an id of a framework, such as a session's; it has one run at a time. An *answer* is the key
of a conversation that ends with it (:mod:`fairserve.interactions.tracking.conversation`), or of its
prompt alone if its content is not known. If two runs got the same answer to the same prompt, the key
names neither. An entry outlives its run: a late client of an ended run is not taken for one of another
run with the same conversation.

Everything belongs to one app and user. Memory is bounded by ``entries``, shared by tenant, app and user,
and entries expire after ``RETENTION_S``. Each operation is one hash and a few look-ups.

Weakness: a conversation that was begun elsewhere (at another server, before a restart, from the
client's own cache of answers, or before the entry was evicted) is taken for the only live run that has
the same prompts and answers. A fork of a conversation belongs to its run. A user's flood of calls
evicts entries of its own; its next calls begin new runs.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.interactions.tracking.shares import Owner

RETENTION_S = 86_400.0
"""Seconds for which an entry is kept after the last call that confirmed it."""
_SEVERAL = ""
"""Value of an answer that several runs got."""


class RunIndex:
    """Ids of runs by tenant, app, user and key. ``now_s`` is the caller's monotonic time."""

    def __init__(self, entries: int) -> None:
        self._runs: SharedTable[tuple[str, int], str] = SharedTable(entries)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._runs)

    def named(self, owner: Owner, name: int, now_s: float) -> str | None:
        """Return the id of the run that had a name last; the run may have ended."""
        return self._runs.get(_key(owner, "name", name), now_s)

    def answered(self, owner: Owner, scope: int, answer: int, now_s: float) -> str | None:
        """Return the id of the run that alone got an answer; the run may have ended."""
        found = self._runs.get(_key(owner, scope, answer), now_s)
        return None if found == _SEVERAL else found

    def name(self, owner: Owner, name: int, run_id: str, now_s: float) -> None:
        """Give a name to a run; a run that had it before loses it."""
        self._runs.put(owner, _key(owner, "name", name), run_id, now_s + RETENTION_S)

    def answer(self, owner: Owner, scope: int, answer: int, run_id: str, now_s: float) -> None:
        """Add an answer of a run."""
        key = _key(owner, scope, answer)
        before = self._runs.get(key, now_s)
        value = run_id if before in (None, run_id) else _SEVERAL
        self._runs.put(owner, key, value, now_s + RETENTION_S)

    def expire(self, now_s: float) -> None:
        """Remove old entries."""
        self._runs.expire(now_s)

    def snapshot(self, now_s: float) -> list[Any]:
        """Return the entries as plain JSON values; ages, not times."""
        return [
            [*owner, key, age_of(until_s, now_s), run_id]
            for owner, (_, key), until_s, run_id in self._runs.items()
        ]

    def restore(self, state: list[Any], now_s: float) -> None:
        """Add the entries of an earlier snapshot to an empty index."""
        for tenant, app, user, key, age, run_id in state:
            self._runs.put((tenant, app, user), (tenant, key), run_id, time_of(age, now_s))


def _key(owner: Owner, scope: object, value: int) -> tuple[str, int]:
    tenant, app, user = owner
    text = f"{scope}\0{value}\0{app}\0{user}"  # only the user may have any characters
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return tenant, int.from_bytes(digest, "big")
