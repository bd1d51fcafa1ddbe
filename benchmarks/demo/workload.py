"""Schedule of the runs of all users: equal for every system, from one seed.

Arrivals are open: a run starts at its time whether or not earlier ones have ended, so a slow system
gets no less work. Well-behaved users pause between runs. One user of the question answering app
runs a script that asks about document after document, far over a user's share, from
``FLOOD_BEGINS`` of the time on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

WELL_BEHAVED = "well_behaved"
FLOODER = "flooder"


@dataclass(frozen=True, slots=True)
class AppLoad:
    """Users of one app: the frequency of their runs, and the number of calls."""

    app: str
    tenant: str
    users: tuple[str, ...]
    period_s: float
    """Mean time in seconds between the runs of one user."""
    calls_per_run: int


LOADS = (
    AppLoad("documents", "library", ("ada", "ben", "cleo"), 9.0, 5),
    AppLoad("reports", "library", ("dora", "emil", "fay"), 11.0, 6),
    AppLoad("puzzles", "institute", ("gus", "hana", "ivo"), 25.0, 14),
)
FLOOD_APP = LOADS[0]
FLOOD_USER = "nightly-script"
FLOOD_PERIOD_S = 0.5
FLOOD_BEGINS = 0.1
"""Share of the time after which the flood begins; it lasts until the end."""

CODING = AppLoad("code", "workshop", ("jo", "kai", "lea", "mia"), 0.5, 12)
"""Agents of the second part, whose contexts exceed the caches."""
SESSIONS = 32
SESSIONS_WITHIN_S = 2.0

CALLS_PER_MINUTE = 36
"""Operator's limit per user: a tenth over the mean of the well-behaved users."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that starts at ``start_s``. ``seed`` determines everything that it does."""

    run_id: str
    tenant: str
    app: str
    user: str
    group: str
    start_s: float
    number: int
    """Number of the run among this user's runs."""
    seed: int

    @property
    def client(self) -> str:
        """Return the end user as named in the metrics."""
        return f"{self.tenant}/{self.user}"


def schedule(seed: int, seconds: float) -> list[PlannedRun]:
    """Return all runs of one system, in the order of their starts."""
    runs: list[PlannedRun] = []
    for load in LOADS:
        for user in load.users:
            chance = _chance(f"{seed}/{user}")
            for number, start_s in enumerate(_starts(chance, load.period_s, seconds)):
                runs.append(_planned(seed, load, user, WELL_BEHAVED, start_s, number))
    chance = _chance(f"{seed}/{FLOOD_USER}")
    flood_s = seconds * (1 - FLOOD_BEGINS)
    for number, start_s in enumerate(_starts(chance, FLOOD_PERIOD_S, flood_s)):
        start_s += seconds * FLOOD_BEGINS
        runs.append(_planned(seed, FLOOD_APP, FLOOD_USER, FLOODER, start_s, number))
    return sorted(runs, key=lambda run: (run.start_s, run.run_id))


def sessions(seed: int, part: int) -> list[PlannedRun]:
    """Return the sessions of the second part under one system, with tasks that no other part has."""
    runs = []
    for n in range(SESSIONS):
        user = CODING.users[n % len(CODING.users)]
        start_s = n * SESSIONS_WITHIN_S / SESSIONS
        runs.append(_planned(seed, CODING, user, WELL_BEHAVED, start_s, part * SESSIONS + n))
    return runs


def _chance(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311  a schedule is no secret


def _starts(chance: random.Random, period_s: float, seconds: float) -> Iterator[float]:
    """Yield start times with the given mean gap: at least half of it, the rest exponential."""
    start_s = chance.uniform(0.0, period_s)
    while start_s < seconds:
        yield start_s
        start_s += period_s / 2 + chance.expovariate(2 / period_s)


def _planned(
    seed: int, load: AppLoad, user: str, group: str, start_s: float, number: int
) -> PlannedRun:
    return PlannedRun(
        run_id=f"{load.app}-{user}-{number}",
        tenant=load.tenant,
        app=load.app,
        user=user,
        group=group,
        start_s=start_s,
        number=number,
        seed=_chance(f"{seed}/{user}/{number}").getrandbits(31),
    )
