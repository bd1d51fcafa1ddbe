"""Service that nobody else could or would use costs nothing later, under every system.

A has the workers of one kind, or of one model, for itself, while C uses the others. Then A uses those of
C, too. Each is entitled to half of them.
"""

from itertools import count

import pytest
from virtual_cluster import VirtualCluster, hash_of, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

ALONE_S, TOGETHER_S, QUEUED = 8.0, 16.0, 6
PROMPT, OUTPUT = 128, 4
DEPARTURES = {"lcf": (0.7, 1.0)}
"""Shares of A under systems that keep the rule of their paper. LCF lifts nobody: A, who was away from
the workers of C, gets all of them for as long as C had them alone."""
NOT_MEASURED = {"rpm-20"}
"""It rejects most of these calls, whoever they are of."""
NAMES = sorted(
    name for name, each in SYSTEMS.items() if not each.simulated_only and name not in NOT_MEASURED
)


class Two(VirtualCluster):
    """Workers g and n, and clients that keep calls waiting for them."""

    def __init__(self, system, by_kind):
        super().__init__(SYSTEMS[system], workers=0, slots=2, step_s=0.05)
        self.by_kind, self.numbers, self.served = by_kind, count(), []
        self.wanted, self.due, self.place = set(), [], {}
        self.event(AppChanged("app", AppProfile((StageProfile(PROMPT, 0, OUTPUT),)), Limits()))
        for name in "gn":
            self.join(name, 4000, *(("m", name) if by_kind else (name,)))
        self.on_end = self._call_ended

    def want(self, who, name):
        self.wanted.add((who, name))
        for _ in range(QUEUED):
            self._call(who, name)

    def _call(self, who, name):
        name_of_call = f"{who}{next(self.numbers)}"
        tokens = prompt((hash_of(name_of_call), PROMPT))
        call = make_call(name_of_call, user=who, tokens=tokens, output=OUTPUT)
        call.pool = call.model = "m" if self.by_kind else name
        call.kinds = frozenset({name}) if self.by_kind else frozenset()
        self.place[call.call_id] = who, name
        self.arrive(call)

    def _call_ended(self, call, outcome):
        self.served.append(self.place[call.call_id])
        self.due.append(self.place[call.call_id])

    def _step(self, worker):
        super()._step(worker)
        while self.due:
            if (again := self.due.pop()) in self.wanted:
                self._call(*again)


@pytest.mark.parametrize("by_kind", [True, False], ids=["kinds", "models"])
@pytest.mark.parametrize("system", NAMES)
def test_service_that_nobody_else_wanted_costs_nothing_later(system, by_kind):
    cluster = Two(system, by_kind)
    cluster.want("A", "g")
    cluster.want("C", "n")
    cluster.run(ALONE_S)
    cluster.served.clear()
    cluster.want("A", "n")
    cluster.run(ALONE_S + TOGETHER_S)
    got = cluster.served.count(("A", "n"))
    share = got / (got + cluster.served.count(("C", "n")))
    least, most = DEPARTURES.get(system, (0.45, 0.55))
    assert least <= share <= most
