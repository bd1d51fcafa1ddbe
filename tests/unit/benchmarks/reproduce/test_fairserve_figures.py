"""The figures of one replay equal values computed by hand."""

import pytest

from fairserve.benchmarks.reproduce.fairserve.figures import fairserve_figures
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.metrics import CallSample, RunSample


def planned(call_id, tokens):
    return TraceCall(call_id, "agent", (), 0.0, tokens - 20, 0, 20)


def interaction(name, app, user, *tokens, group="well-behaved"):
    calls = tuple(planned(str(number), each) for number, each in enumerate(tokens))
    return Interaction(name, "t", app, user, 0.0, calls, group=group)


def call(user, run, arrival_s, end_s, tokens, *, outcome="completed", waited_s=0.0, **more):
    started = outcome == "completed"
    return CallSample(
        client=user,
        interaction_id=run,
        arrival_s=arrival_s,
        end_s=end_s,
        outcome=outcome,
        usage=TokenUsage(tokens - 20, 0, 0, 20) if tokens else TokenUsage(),
        queue_delay_s=waited_s if started else None,
        first_token_s=arrival_s + waited_s + 1.0 if started else None,
        group=more.pop("group", "well-behaved"),
    )


def ended(user, run, complete, cause=""):
    return RunSample(user, run, 0.0, 10.0, complete, cause=cause)


@pytest.fixture(scope="module")
def figures():
    """Return figures of light calls of 100 tokens and heavy ones of 1,000, stopped after 60 s.

    ada has one light run, and one of two calls that is cut; bob has one heavy run of two calls, of
    which the second still waits at the stop; eve floods: one run is served, two are rejected.
    """
    trace = Trace(
        "hand",
        16,
        (
            interaction("ada-1", "light", "ada", 100),
            interaction("ada-2", "light", "ada", 100, 100),
            interaction("bob-1", "heavy", "bob", 1000, 1000),
            *(interaction(f"eve-{n}", "light", "eve", 100, group="abusive") for n in range(3)),
        ),
    )
    flood = {"group": "abusive"}
    calls = [
        call("ada", "ada-1", 0, 30, 100, waited_s=7.0),
        call("ada", "ada-2", 5, 20, 100, waited_s=1.0),
        call("ada", "ada-2", 20, 20, 0, outcome="refused"),
        call("bob", "bob-1", 10, 40, 1000, waited_s=2.0),
        call("bob", "bob-1", 45, 60, 0, outcome="cancelled"),
        call("eve", "eve-0", 0, 50, 100, waited_s=21.0, **flood),
        call("eve", "eve-1", 1, 1, 0, outcome="refused", **flood),
        call("eve", "eve-2", 2, 2, 0, outcome="refused", **flood),
    ]
    runs = [
        ended("ada", "ada-1", complete=True),
        ended("ada", "ada-2", complete=False, cause="throttled"),
        ended("eve", "eve-0", complete=True),
        ended("eve", "eve-1", complete=False, cause="throttled"),
        ended("eve", "eve-2", complete=False, cause="throttled"),
    ]
    return fairserve_figures(trace, ReplayResult(calls, runs, busy_share=1.0))


def test_requests_are_runs_of_one_call_and_interactions_those_of_several(figures):
    assert figures["requests"] == {"provided": 50.0, "users": 100.0, "aborted": 2}
    assert figures["interactions"] == {"provided": 0.0, "users": 0.0, "aborted": 1}


def test_a_user_is_delayed_by_the_longest_wait_and_by_calls_that_never_started(figures):
    """ada waited 7 s, bob 15 s until the stop, eve 21 s."""
    assert figures["delayed_users"] == pytest.approx(200 / 3)
    assert figures["delayed_good_users"] == 50.0


def test_throttled_users_are_counted_by_their_rate(figures):
    assert figures["throttled_good_users"] == 1
    assert figures["least_throttled_rpm"] == 3.0


def test_apps_cover_well_behaved_users(figures):
    light, heavy = figures["apps"]["light"], figures["apps"]["heavy"]
    assert light["served_requests"] == 3
    assert light["prompt_tokens_per_s"] == pytest.approx(3 * 80 / 60)
    assert light["tokens_per_s"] == pytest.approx(200 / 60)
    assert light["ttft_s"]["mean"] == pytest.approx(5.0)
    assert heavy["ttft_s"]["mean"] == pytest.approx(3.0)


def two_users(bobs_second):
    """Return two successive calls of ada's app, of 100 tokens each, and of bob's, of 1,000."""
    trace = Trace(
        "two",
        16,
        tuple(
            interaction(f"{user}-{number}", app, user, tokens)
            for user, app, tokens in (("ada", "light", 100), ("bob", "heavy", 1000))
            for number in range(2)
        ),
    )
    calls = [call("ada", "ada-0", 0, 30, 100), call("ada", "ada-1", 30, 60, 100)]
    calls += [call("bob", "bob-0", 0, 30, 1000), bobs_second]
    return fairserve_figures(trace, ReplayResult(calls, [], busy_share=1.0))


def test_service_is_measured_in_typical_calls():
    equal = two_users(call("bob", "bob-1", 30, 60, 1000))
    assert equal["slice_jain_index"] == pytest.approx(1.0)
    assert equal["slice_difference"]["max"] == pytest.approx(0.0)


def test_a_call_waiting_at_the_stop_counts_as_demand():
    """ada had two typical calls in a minute, bob one, and requested another."""
    starved = two_users(call("bob", "bob-1", 30, 60, 0, outcome="cancelled"))
    assert starved["slice_difference"]["max"] == pytest.approx(1.0)
    rejected = two_users(call("bob", "bob-1", 30, 60, 0, outcome="refused"))
    assert rejected["slice_difference"]["max"] == pytest.approx(0.0)
