"""Service at several models: contended service counts at all of them, the rest is no debt.

Two feeders share their charges, as the pools of two models do. Model m serves A, and C where A has a
competitor; model n serves A and B. A client's *contended* service is that of calls at whose dispatch
a sibling waited at the same model.
"""

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.throttling.base import Limits

SLACK, LARGEST, MOST = 1.0, 1.5, 2
"""Slack, largest slice of a call, and calls that run at a time at each model."""
ARRANGEMENTS = {
    "users": {"A": ("a",), "B": ("b",), "C": ("c",)},
    "users of a tenant": {"A": ("t", "a"), "B": ("t", "b"), "C": ("t", "c")},
    "tenants": {"A": ("a", "u"), "B": ("b", "u"), "C": ("c", "u")},
    "apps": {"A": ("t", "a", "u"), "B": ("t", "b", "u"), "C": ("t", "c", "u")},
    "a competitor of another tenant": {"A": ("t", "a"), "B": ("t", "b"), "C": ("s", "c")},
}


class Models:
    """Feeders of models m and n. Each model runs up to ``MOST`` calls at a time."""

    def __init__(self, paths, rng, charge="expected"):
        directory = Directory()
        directory.take(AppChanged("app", AppProfile((StageProfile(50, 0, 50),)), Limits()))
        options = WscOptions(charge=charge, interaction_slack=SLACK, locality_slack=0.0)
        self.feeders = {m: WscFeeder(directory, Locality(1, 16), options) for m in "mn"}
        for model, other in ("mn", "nm"):
            self.feeders[model].share([self.feeders[other]])
        self.paths, self.rng, self.numbers = paths, rng, count()
        self.queued = {model: dict.fromkeys("ABC", 0) for model in "mn"}
        self.running = {model: [] for model in "mn"}
        self.served = dict.fromkeys([(model, who) for model in "mn" for who in "ABC"], 0.0)
        """Slices of the dispatched calls by model and client."""
        self.contended = 0.0
        """Those of A at m while a sibling of A and B waited there."""

    def fill(self, model, who, calls):
        """Make this number of calls of a client wait; none leaves the queue for it."""
        while self.queued[model][who] < calls:
            call = make_call(f"{who}{next(self.numbers)}", tokens=range(50), output=200)
            call.client, call.expected_output_tokens = self.paths[who], 50
            self.feeders[model].add(call)
            self.queued[model][who] += 1

    def withdraw(self, model, who):
        """Remove the client's waiting calls."""
        for call in list(self.feeders[model].waiting()):
            if call.client == self.paths[who]:
                self.feeders[model].remove(call.call_id)
        self.queued[model][who] = 0

    def serve(self, model):
        """End a call of a full model, then dispatch the next one."""
        feeder, running = self.feeders[model], self.running[model]
        if len(running) == MOST or (running and not len(feeder)):
            call, output = running.pop(self.rng.randrange(len(running)))
            feeder.finish(call.call_id, TokenUsage(50, 0, 0, output))
        call = feeder.peek(("w",))
        if call is None:
            return
        who = next(each for each, path in self.paths.items() if path == call.client)
        self.queued[model][who] -= 1
        feeder.dispatch(call.call_id, 0)
        output = self.rng.choice((50, self.rng.randint(1, 100)))
        running.append((call, output))
        slices = (50 + output) / 100
        assert slices <= LARGEST
        self.served[model, who] += slices
        if model == "m" and who == "A" and self.queued["m"]["C"] and self._siblings():
            self.contended += slices

    def _siblings(self):
        """Return whether C competes with A at the level at which A and B are siblings."""
        a, b, c = self.paths.values()
        level = next(depth for depth, name in enumerate(a) if name != b[depth])
        return a[:level] == c[:level] and a[level] != c[level]


BOUND = SLACK + 2 * (2 * MOST) * LARGEST
"""``S + 2 R U``; A may have calls running at both models."""


CHARGES = st.sampled_from(["expected", "finish"])
"""Rules of ``fairserve``, and of ``fs-w`` and ``fs-wi``."""


@given(st.integers(0, 2**32), st.sampled_from(sorted(ARRANGEMENTS)), CHARGES)
def test_service_without_a_competitor_is_no_debt_at_another_model(seed, arrangement, charge):
    """After any use of m alone, and of n in turns, A gets as much of n as B from then on."""
    rng = random.Random(seed)
    models = Models(ARRANGEMENTS[arrangement], rng, charge)
    for _ in range(rng.randrange(300)):
        models.fill("m", "A", rng.randint(0, 3))
        models.serve("m")
        if rng.random() < 0.2 and not len(models.feeders["n"]):
            models.fill("n", rng.choice("AB"), 1)
        models.serve("n")
    for who in rng.sample("AB", 2):
        models.fill("n", who, 3)
    before = dict(models.served)
    for _ in range(150):
        models.fill("n", "A", 3)
        models.fill("n", "B", 3)
        models.fill("m", "A", rng.randint(0, 3))
        models.serve("n")
        models.serve("m")
        got = {who: models.served["n", who] - before["n", who] for who in "AB"}
        assert abs(got["A"] - got["B"]) <= BOUND


@given(st.integers(0, 2**32), st.sampled_from(sorted(ARRANGEMENTS)), st.booleans(), CHARGES)
def test_a_contended_debt_is_not_erased_by_leaving_toggling_or_splitting(
    seed, arrangement, splits, charge
):
    """B always waits at n. A's service there and its contended service at m stay within B's."""
    rng = random.Random(seed)
    models = Models(ARRANGEMENTS[arrangement], rng, charge)
    models.fill("n", "B", 3)
    for _ in range(300):
        models.fill("n", "B", 3)
        if rng.random() < 0.05:
            models.withdraw(rng.choice("mn"), rng.choice("AC"))
        else:
            models.fill(rng.choice("mn") if splits else rng.choice("mmmn"), "A", rng.randint(1, 9))
        if rng.random() < 0.5:
            models.fill("m", "C", 6)
        contended, at_n = models.contended, models.served["n", "A"]
        models.serve("m")
        models.serve("m" if rng.random() < 0.5 else "n")
        models.serve("n")
        if models.served["n", "A"] > at_n:  # A was selected at n
            assert at_n + contended <= models.served["n", "B"] + BOUND


def test_a_newcomer_has_no_claim_on_what_others_got_before():
    """A and C compete for m for a long time. B, who arrives at n first, owes and is owed nothing."""
    models = Models(ARRANGEMENTS["tenants"], random.Random(1))
    models.fill("n", "B", 1)
    models.serve("n")
    for _ in range(1000):
        models.fill("m", "A", 3)
        models.fill("m", "C", 3)
        models.serve("m")
    models.withdraw("m", "A")
    assert models.contended > 400
    got = {}
    for _ in range(100):
        models.fill("n", "B", 3)
        models.fill("n", "A", 3)
        models.serve("n")
    for who in "AB":
        got[who] = models.served["n", who]
    assert got["A"] == pytest.approx(got["B"], abs=BOUND)
