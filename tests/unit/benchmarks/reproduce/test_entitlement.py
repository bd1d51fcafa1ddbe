"""Test the entitlement of clients, and their satisfaction under different systems."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.benchmarks.reproduce.entitlement import simulate_with_entitlement
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.scheduling.metrics import satisfied, water_filling
from fairserve.scheduling.registry import SYSTEMS

CLIENTS = st.dictionaries(
    st.text(max_size=3), st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), min_size=1, max_size=6
)


@given(CLIENTS, st.floats(0, 1))
def test_a_total_is_divided_by_weighted_water_filling(clients, part):
    demands = {client: demand for client, (demand, _) in clients.items()}
    weights = {client: weight for client, (_, weight) in clients.items()}
    total = part * sum(demands.values())
    shares = water_filling(demands, total, weights)
    assert sum(shares.values()) == pytest.approx(total, abs=1e-3)
    level = max(share / weights[client] for client, share in shares.items())
    for client, share in shares.items():
        assert share <= demands[client] + 1e-6
        whole = share == pytest.approx(demands[client])
        assert whole or share / weights[client] == pytest.approx(level, rel=1e-6, abs=1e-3)


def test_a_client_within_its_share_gets_its_whole_demand():
    assert water_filling({"a": 1.0, "b": 9.0, "c": 9.0}, 7.0) == {"a": 1.0, "b": 3.0, "c": 3.0}
    assert water_filling({"a": 9.0, "b": 9.0}, 6.0, {"a": 2.0}) == {"b": 2.0, "a": 4.0}


def test_service_above_the_entitlement_adds_no_satisfaction():
    shares = satisfied({"a": 4.0, "b": 1.0}, {"a": 2.0, "b": 2.0, "c": 1.0, "d": 0.0})
    assert shares == {"a": 1.0, "b": 0.5, "c": 0.0, "d": 1.0}


def chain(client, number, calls, *, size=400, at_s=0.0):
    """Return a run whose calls depend on each other in a chain."""
    planned = [
        TraceCall(str(place), "a", (str(place - 1),) if place else (), 0.0, size, 0, size // 8)
        for place in range(calls)
    ]
    return Interaction(
        f"{client}-{number}", "t", client, client, at_s, tuple(planned), group=client
    )


COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=4)


def judged(runs, *systems, workers=1, end_s=30.0):
    trace = Trace("t", 16, ()).with_interactions(runs)
    jobs = {
        name: [
            SimulationJob(
                name,
                trace,
                SYSTEMS[name],
                COSTS,
                ReplayOptions(workers=workers),
                figures=partial(steady, begin_s=0.0, end_s=end_s),
            )
        ]
        for name in systems
    }
    found = simulate_with_entitlement(Setting(seeds=1), jobs, 0.0, end_s)
    return {name: summaries[0] for name, summaries in found.items()}


FLOOD = [chain("flood", number, 1) for number in range(600)]


def test_starving_a_closed_loop_hides_no_demand():
    """A program of many calls requests one at a time, so that behind a flood it requests few.

    Its entitlement is the same under FCFS, which starves it, as under the default, which does not.
    """
    programs = [chain("programs", number, 40) for number in range(8)]
    found = judged([*FLOOD, *programs], "fcfs", "fairserve")
    assert found["fcfs"]["satisfied"]["t/programs"] < 0.2
    assert found["fairserve"]["satisfied"]["t/programs"] > 0.9
    assert found["fairserve"]["satisfied_min"] > 0.9


def test_a_client_within_its_share_is_reported_with_its_wait():
    rare = [chain("rare", number, 1, at_s=3.0 * number) for number in range(9)]
    found = judged([*FLOOD, *rare], "fcfs", "fairserve")
    assert found["fcfs"]["satisfied"]["t/rare"] == 0.0
    assert found["fairserve"]["satisfied"]["t/rare"] > 0.9
    waits_s = {name: each["per_client"]["t/rare"]["ttft_s"]["p99"] for name, each in found.items()}
    assert waits_s["fairserve"] < 2.0
    assert waits_s["fcfs"] > 20.0


def test_a_call_counts_relative_to_its_app():
    """Calls ten times as large of one app count as much as small ones of another."""
    small = [chain("small", number, 1, size=80) for number in range(20)]
    large = [chain("large", number, 1, size=800) for number in range(20)]
    found = judged([*small, *large], "fairserve", end_s=200.0)["fairserve"]
    rates = found["typical_calls_per_s"]
    assert rates == pytest.approx({"t/small": 0.1, "t/large": 0.1})


def test_a_demanding_client_is_entitled_to_half_of_the_best_total():
    """Two clients have calls waiting all the time, one of them three times as many."""
    three = [chain("three", number, 1) for number in range(600)]
    one = [chain("one", number, 1) for number in range(200)]
    mixed = [run for number in range(200) for run in (*three[3 * number :][:3], one[number])]
    found = judged(mixed, "fcfs", "fairserve", end_s=10.0)
    best = max(sum(each["typical_calls_per_s"].values()) for each in found.values())
    for summary in found.values():
        rate = summary["typical_calls_per_s"]["t/one"]
        assert summary["satisfied"]["t/one"] == pytest.approx(min(1.0, rate / (best / 2)))
    assert found["fcfs"]["satisfied"]["t/one"] == pytest.approx(0.5, abs=0.05)
    assert found["fairserve"]["satisfied"]["t/one"] > 0.95
