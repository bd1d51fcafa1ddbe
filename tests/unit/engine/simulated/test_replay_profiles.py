"""Test profiles that are learned in a replay: their calls, their times, and the dispatcher's events."""

from dataclasses import replace

import pytest

from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_profiles import ReplayProfiles
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.scheduling.registry import SYSTEMS

QUICK = LearningOptions(min_samples=2, learned_after=4, max_calls=6)
LONG = replace(QUICK, max_calls=100)
DECLARED = AppProfile((StageProfile(5000, 0, 500),), 40.0)
COSTS = COST_MODELS["a100-llama3-8b"]


def run(name, *, calls=2, samples=1, tokens=200, arrival_s=0.0):
    made = tuple(
        TraceCall(
            f"c{number}",
            "agent",
            (f"c{number - 1}",) if number else (),
            0.0,
            tokens,
            0,
            20,
            samples,
        )
        for number in range(calls)
    )
    return Interaction(name, "t", "app", f"u-{name}", arrival_s, made)


def trace(*runs):
    return Trace("trace", 16, ()).with_interactions(runs)


def replayed(of, **options):
    return Replay(of, SYSTEMS["fairserve"], COSTS, ReplayOptions(**options)).run()


def test_without_learning_the_declared_profile_applies():
    assert replayed(trace(run("a"), run("b"))).profiles == []


def test_wrong_profiles_are_corrected_from_calls():
    runs = [run(f"r{number}", arrival_s=number / 2) for number in range(12)]
    found = replayed(
        trace(*runs), profiles={"app": DECLARED}, learning=LONG, learning_interval_s=1.0
    ).profiles
    assert found[0].held.profile.calls_per_interaction == 32.0, "as far as it is believed"
    last = found[-1].held
    assert [change.app for change in found] == ["app"] * len(found)
    assert last.source == "learned"
    assert [stage.input_tokens for stage in last.profile.stages] == pytest.approx([200, 200])
    assert [stage.output_tokens for stage in last.profile.stages] == pytest.approx([20, 20])
    assert last.profile.calls_per_interaction == 2
    assert [change.held.since_s for change in found] == sorted(c.held.since_s for c in found)


def test_the_output_of_a_call_includes_all_samples():
    runs = [run(f"r{number}", samples=3, arrival_s=number / 2) for number in range(12)]
    of = trace(*runs)
    assert profiles_of(of)["app"].stages[0].output_tokens == pytest.approx(60)
    found = replayed(of, profiles={"app": DECLARED}, learning=LONG, learning_interval_s=1.0)
    assert found.profiles[-1].held.profile.stages[0].output_tokens == pytest.approx(60)


# --- single rules ---------------------------------------------------------------------------------


class Calls:
    """Profiles of a replay, with calls that are added by hand."""

    def __init__(self, **options):
        self.profiles = ReplayProfiles(
            trace(run("a")),
            ReplayOptions(
                profiles={"app": DECLARED}, learning=QUICK, learning_interval_s=10.0, **options
            ),
        )
        self.profiles.declared()
        self.plans = Replay(trace(run("a")), SYSTEMS["fairserve"], COSTS)._plans

    def ended(self, number, usage, at_s=0.0):
        for place in range(number):
            of = run(f"r{at_s}-{place}")
            call = self.plans.call(of, of.calls[0])
            call.stage = 1
            self.profiles.call_ended(call, usage, at_s)

    def size_at(self, now_s):
        """Return a part of the profile that the dispatcher gets at ``now_s``; None if it gets none."""
        events = self.profiles.due(now_s)
        return events[0].profile.stages[0].total_tokens if events else None


USED = TokenUsage(100, 0, 0, 10)


def test_calls_with_usage_count_whatever_their_outcome():
    calls = Calls()
    calls.ended(4, TokenUsage())
    assert calls.size_at(0.0) is None
    calls.ended(4, TokenUsage(100, 0, 0, 3))  # cut off after three tokens
    assert calls.size_at(10.0) == 103


def test_profiles_are_learned_once_an_interval_from_new_calls():
    calls = Calls()
    calls.ended(4, USED)
    assert calls.size_at(0.0) == 110
    calls.ended(4, TokenUsage(50, 0, 0, 5))
    assert calls.size_at(9.0) is None
    assert calls.size_at(10.0) is not None
    assert calls.size_at(20.0) is None


def test_only_the_newest_calls_count():
    calls = Calls()
    calls.ended(6, TokenUsage(900, 0, 0, 0))
    calls.ended(6, USED)
    assert calls.size_at(0.0) == 110, "six calls count"
    calls = Calls()
    calls.ended(4, TokenUsage(900, 0, 0, 0))
    later_s = QUICK.window_s + 1.0
    calls.ended(2, USED, later_s)
    assert calls.size_at(later_s) == 110


@pytest.mark.parametrize(
    ("state", "ended"), [("complete", 1), ("cancelled", 1), ("expired", 1), ("aborted", 0)]
)
def test_a_cut_run_counts_as_unfinished(state, ended):
    calls = Calls()
    calls.ended(4, USED)
    end = RunEnd("r0.0-0", "t", "app", "u", state, 1, 110, 0, "")
    calls.profiles.run_ended(end, 1.0)
    calls.size_at(1.0)
    assert calls.profiles.changes[-1].interactions == ended
