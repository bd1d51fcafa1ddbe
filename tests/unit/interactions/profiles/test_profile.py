"""Test a profile: its expectations of a call and of the rest of a run, its bounds, its plain form."""

import json

import pytest
from virtual_cluster import VirtualCluster, make_call

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

STAGES = (StageProfile(100, 10, 20), StageProfile(1000, 0, 50))
FULL = AppProfile(
    STAGES,
    calls_per_interaction=3.5,
    idle_timeout_s=60.0,
    agents={"writer": (StageProfile(50, 0, 400),), "critic": STAGES},
    run_lengths=(1.0, 3.0, 8.0),
    believed_tokens=500.0,
    seen_stages=1,
)


def test_the_plain_form_survives_a_round_trip():
    assert AppProfile.from_plain(json.loads(json.dumps(FULL.to_plain()))) == FULL


def test_an_older_plain_form_gets_the_defaults():
    plain = {"stages": [{"input_tokens": 5, "system_tokens": 0, "output_tokens": 1}]}
    assert AppProfile.from_plain(plain) == AppProfile((StageProfile(5, 0, 1),))


def test_the_directory_keeps_all_of_a_profile_across_a_restart():
    known, again = Directory(), Directory()
    known.take(ev.AppChanged("app", FULL, Limits(user_rpm=3), weight=2.0))
    again.restore(json.loads(json.dumps(known.snapshot())))
    assert again.profile("app") == FULL
    assert again.limits("app", "t", "u") == Limits(user_rpm=3)
    assert again.snapshot() == known.snapshot()


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (0, (1 + 3 + 8) / 3),
        (1, (2 + 7) / 2),
        (2, (1 + 6) / 2),
        (3, 5.0),
        (7, 1.0),
        (8, 1.0),  # longer than all known runs: the excess so far
        (9, 2.0),
        (108, 101.0),
    ],
)
def test_the_rest_of_a_run_is_estimated_from_longer_runs(made, left):
    assert FULL.remaining_calls(made) == pytest.approx(left)


def test_without_known_lengths_the_expected_length_is_used():
    declared = AppProfile(STAGES, calls_per_interaction=4.0)
    assert [declared.remaining_calls(made) for made in (0, 1, 3, 4, 5, 9)] == [4, 3, 1, 1, 2, 6]


def test_the_estimated_rest_of_an_endless_run_grows():
    left = [FULL.remaining_calls(made) for made in range(8, 200)]
    assert left == sorted(left)
    assert left[-1] > 190


@pytest.mark.parametrize(
    ("stage", "agent", "output"),
    [
        (1, None, 20),
        (2, None, 50),
        (9, None, 50),
        (1, "writer", 400),
        (7, "writer", 400),
        (2, "critic", 50),
        (1, "nobody", 20),
    ],
)
def test_output_is_predicted_by_agent_if_known(stage, agent, output):
    assert FULL.expected_output(stage, agent) == output


def test_agent_output_covers_all_samples_of_a_call():
    cluster = VirtualCluster(SYSTEMS["fairserve"])
    cluster.event(ev.AppChanged("app", FULL, Limits()))
    calls = {
        "named": make_call("named", agent="writer", output=1000),
        "plain": make_call("plain", output=1000),
        "sampled": make_call("sampled", agent="writer", output=100, samples=3),
    }
    for call in calls.values():
        cluster.arrive(call)
    expected = {name: call.expected_output_tokens for name, call in calls.items()}
    # a profile has the output of a whole call; three samples of 100 do not make 400
    assert expected == {"named": 400, "plain": 20, "sampled": 300}


def test_agent_figures_change_no_weight():
    plain = AppProfile(STAGES, believed_tokens=500.0, seen_stages=1)
    typical = SliceWeights().typical_call
    assert [typical(FULL, n) for n in range(1, 5)] == [typical(plain, n) for n in range(1, 5)]


@pytest.mark.parametrize(
    "stage", [(-1, 0, 1), (0, 0, 0), (10_000_001, 0, 0), (float("nan"), 0, 0), (0, 0, float("inf"))]
)
def test_a_stage_out_of_bounds_is_rejected(stage):
    with pytest.raises(ValueError, match=r"allowed: 0 to 10,000,000|at least one expected token"):
        StageProfile(*stage)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ()}, "at least one stage"),
        ({"calls_per_interaction": 0.5}, "calls_per_interaction is 0.5; allowed: 1 to 10,000"),
        ({"calls_per_interaction": 1e6}, "calls_per_interaction is 1000000.0; allowed: 1 to"),
        ({"idle_timeout_s": 0}, "idle_timeout_s is 0; allowed"),
    ],
)
def test_a_profile_out_of_bounds_is_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        AppProfile(**({"stages": STAGES} | changes))
