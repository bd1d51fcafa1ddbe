"""Test replays: the closed loop, rejections, isolation, and completeness under every system."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_engine import BLOCK, costs

from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

COSTS = costs(decode_s_per_sequence=0.0, prefill_s_per_token=0.0, prefill_base_s=1.0)
"""A cost model of one second per pass."""


def call(name, deps=(), gap_s=0.0, prompt=8, output=2, samples=1, blocks=()):
    return TraceCall(name, "agent", tuple(deps), gap_s, prompt, 0, output, samples, tuple(blocks))


def run_of(name, *calls, user="u", tenant="t", app="a", at_s=0.0, scope="file", group=""):
    return Interaction(name, tenant, app, user, at_s, calls, scope, group)


def trace(*interactions):
    return Trace("test", BLOCK, ()).with_interactions(interactions)


def replay(what, system="fcfs", costs=COSTS, **options):
    return Replay(what, SYSTEMS[system], costs, ReplayOptions(**options)).run()


def by_id(result):
    """Return the samples in the order in which their calls arrived."""
    return sorted(result.calls, key=lambda sample: (sample.arrival_s, sample.end_s))


def test_a_call_waits_for_its_dependencies_and_then_its_gap():
    result = replay(
        trace(
            run_of(
                "r",
                call("root"),
                call("left", ["root"], 3.0),
                call("right", ["root"], 5.0, output=4),
                call("join", ["left", "right"], 0.5),
                at_s=10.0,
            )
        )
    )
    times = [(sample.arrival_s, sample.end_s) for sample in by_id(result)]
    # a prefill and a step; left and right alike (its pass delays no one); right makes four tokens
    assert times == [(10.0, 12.0), (15.0, 17.0), (17.0, 21.0), (21.5, 23.5)]
    [run] = result.runs
    assert (run.start_s, run.end_s, run.complete, run.wasted_tokens) == (10.0, 23.5, True, 0)


def test_runs_wait_for_others_to_end_in_order_of_arrival():
    runs = [run_of(f"r{n}", call("a"), call("b", ["a"], 1.0), at_s=0.1 * n) for n in range(4)]
    result = replay(trace(*runs), open_runs=1)
    ends_s = [run.end_s for run in result.runs]
    assert [run.interaction_id for run in result.runs] == ["r0", "r1", "r2", "r3"]
    firsts = sorted(each.arrival_s for each in result.calls)[::2]
    assert firsts == [0.0, *ends_s[:-1]]


def test_a_client_aborts_a_run_that_waits_for_a_first_token_for_too_long():
    """One call after the other: the second of the run waits behind a long one of another user."""
    alone = replace(COSTS, max_running=1)
    waiting = run_of("r", call("a"), call("b", ["a"], 0.5))
    long = run_of("long", call("a", output=20), user="v", at_s=2.1)
    for timeout_s, complete, end_s in ((30.0, True, 24.0), (5.0, False, 7.5)):
        result = replay(trace(waiting, long), costs=alone, first_token_timeout_s=timeout_s)
        run = {each.interaction_id: each for each in result.runs}["r"]
        assert (run.complete, run.end_s) == (complete, pytest.approx(end_s, abs=1.0))
        assert run.wasted_tokens == (0 if complete else 10)
    assert [each.outcome for each in by_id(result)] == ["completed", "completed", "cancelled"]
    with pytest.raises(ValueError, match="first_token_timeout_s is 0"):
        ReplayOptions(first_token_timeout_s=0.0)


def chain_of_three(user="u"):
    return run_of("r", call("a"), call("b", ["a"], 1.0), call("c", ["b"], 1.0), user=user)


def test_a_rejection_aborts_the_run_and_wastes_its_usage():
    result = replay(trace(chain_of_three()), "rpm-2")
    outcomes = [(sample.outcome, sample.mid_run) for sample in by_id(result)]
    assert outcomes == [("completed", False), ("completed", False), ("refused", True)]
    [run] = result.runs
    assert (run.complete, run.wasted_tokens, run.cause) == (False, 20, "throttled")


def test_calls_beside_a_rejected_one_are_cancelled():
    fan = run_of("r", call("a", output=40), call("b", output=40), call("c", gap_s=5.0))
    result = replay(trace(fan), "rpm-2")
    assert sorted(sample.outcome for sample in result.calls) == [
        "cancelled",
        "cancelled",
        "refused",
    ]
    assert all(sample.end_s == 5.0 for sample in result.calls)
    [run] = result.runs
    assert run.cause == "throttled"
    assert run.wasted_tokens == sum(
        sample.usage.prompt_tokens + sample.usage.output_tokens for sample in result.calls
    )
    assert run.wasted_tokens == 2 * (8 + 5)  # a token with the prefill and one at each second since


def test_a_rejected_first_call_wastes_nothing():
    result = replay(trace(run_of("r", call("a")), run_of("s", call("a"), at_s=1.0)), "rpm-1")
    ends = {run.interaction_id: (run.complete, run.wasted_tokens) for run in result.runs}
    assert ends == {"r": (True, 0), "s": (False, 0)}


def test_a_rejected_call_is_retried_after_its_retry_after():
    result = replay(trace(chain_of_three()), "rpm-2", retries=1)
    samples = by_id(result)
    assert [sample.outcome for sample in samples].count("refused") == 1
    assert result.runs[0].complete
    assert result.runs[0].end_s >= 60.0


def test_sharing_follows_its_scope():
    def two(**owner):
        first = run_of("r", call("a", blocks=[(1, 2)]), user="u")
        return trace(first, run_of("s", call("a", blocks=[(1, 2)]), at_s=20.0, **owner))

    def cached(what, **options):
        return by_id(replay(what, **options))[1].usage.cached_tokens

    other_user, other_tenant = two(user="v"), two(tenant="w")
    assert cached(other_tenant) == 7
    assert cached(other_user, isolation="tenant") == 7
    assert cached(other_tenant, isolation="tenant") == 0
    assert cached(other_user, isolation="user") == 0
    assert cached(two(), isolation="user") == 7
    assert cached(two(scope="session")) == 0


def test_calls_of_a_session_share_blocks():
    session = run_of(
        "s",
        call("a", blocks=[(1, 2)]),
        call("b", ["a"], blocks=[(1, 2)], prompt=9),
        scope="session",
    )
    assert [sample.usage.cached_tokens for sample in by_id(replay(trace(session)))] == [0, 8]


def test_weights_reach_the_schedulers():
    runs = [
        run_of(f"{user}{n}", call("a", prompt=20, output=20), user=user)
        for user in ("light", "heavy")
        for n in range(40)
    ]

    def served(system):
        result = replay(trace(*runs), system, weights={"heavy": 3.0})
        half_s = max(sample.end_s for sample in result.calls) / 2
        ended = [sample.client for sample in result.calls if sample.end_s < half_s]
        return ended.count("t/heavy") / ended.count("t/light")

    for system in ("vtc-weighted", "fairserve"):
        assert 2.2 < served(system) < 4.0, system
    assert 0.8 < served("vtc") < 1.25


def test_profiles_are_means_over_the_trace():
    first = run_of(
        "r", call("a", prompt=10, output=4), call("b", ["a"], 700.0, prompt=30, samples=3)
    )
    second = run_of("s", call("a", prompt=20, output=8), at_s=1.0)
    profile = profiles_of(trace(first, second))["a"]
    assert [(s.input_tokens, s.output_tokens) for s in profile.stages] == [(15, 6), (30, 6)]
    assert profile.calls_per_interaction == 1.5
    assert profile.idle_timeout_s > 700


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (call("a", prompt=90, output=10), "needs 100 tokens; a worker of test holds 100"),
        (call("a", prompt=9, output=30, samples=4), "needs 129 tokens"),
        (call("a", blocks=[(2**40 - 1, 2)]), "block id 1099511627776"),
    ],
)
def test_impossible_traces_are_rejected_before_the_replay(bad, message):
    with pytest.raises(TraceError, match=message) as caught:
        replay(trace(run_of("r", bad)))
    assert "'r'" in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "output", "samples", "needed"),
    [(90, 11, 1, 100), (90, 12, 1, 104), (9, 30, 3, 104), (8, 30, 3, 104), (8, 29, 3, 92)],
)
def test_a_paged_worker_holds_whole_blocks_and_not_the_last_token(prompt, output, samples, needed):
    what = trace(run_of("r", call("a", prompt=prompt, output=output, samples=samples)))
    costs = replace(COSTS, loop="paged", kv_capacity_tokens=102)
    if needed > 100:
        with pytest.raises(TraceError, match=f"needs {needed} tokens; a worker of test holds 102"):
            replay(what, costs=costs)
    else:
        assert replay(what, costs=costs).calls[0].usage.output_tokens == output * samples


def test_invalid_options_are_rejected():
    for options in (
        {"workers": 0},
        {"open_runs": 0},
        {"retries": -1},
        {"tick_s": 0.0},
        {"dispatch_delay_s": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            ReplayOptions(**options)


blocks = st.integers(0, 3).flatmap(lambda count: st.just(((1, count),) if count else ()))
plans = st.lists(
    st.tuples(
        st.integers(0, 3),  # user
        st.floats(0, 20),  # arrival
        st.lists(
            st.tuples(
                st.integers(12, 40), st.integers(1, 15), st.booleans(), st.floats(0, 5), blocks
            ),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=12,
)


def built(plan):
    interactions = []
    for number, (user, at_s, calls) in enumerate(plan):
        made = []
        for index, (prompt, output, follows, gap_s, shared) in enumerate(calls):
            deps = [str(index - 1)] if follows and index else []
            made.append(call(str(index), deps, gap_s, prompt, output, blocks=shared))
        interactions.append(run_of(f"r{number}", *made, user=f"u{user}", at_s=at_s))
    return trace(*interactions)


NAMES = [*SYSTEMS, "rpm-3"]


@given(
    plans,
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05]),
    st.booleans(),
    st.sampled_from(["prefill-first", "paged"]),
)
def test_every_run_ends_once_and_every_call_at_most_once(
    plan, system, workers, delay_s, limited, loop
):
    what, costs = built(plan), replace(COSTS, loop=loop)
    options = ReplayOptions(
        workers=workers,
        dispatch_delay_s=delay_s,
        limits=Limits(user_rpm=2, app_rpm=6) if limited else Limits(),
    )

    def result():
        return Replay(what, SYSTEMS[system], costs, options).run()

    once = result()
    assert sorted(run.interaction_id for run in once.runs) == sorted(
        each.interaction_id for each in what.interactions
    )
    complete = {run.interaction_id for run in once.runs if run.complete}
    for each in what.interactions:
        samples = [s for s in once.calls if s.interaction_id == each.interaction_id]
        assert len(samples) <= len(each.calls)
        if each.interaction_id in complete:
            assert [s.outcome for s in samples] == ["completed"] * len(each.calls)
            assert sum(s.usage.output_tokens for s in samples) == sum(
                c.output_tokens for c in each.calls
            )
        else:
            assert any(sample.outcome == "refused" for sample in samples)
    if system not in ("fairserve", "fs-wi", "rpm-3", "rpm-20"):
        assert len(complete) == len(what)
    for sample in once.calls:
        if sample.outcome == "completed":
            assert sample.arrival_s + delay_s <= sample.arrival_s + sample.queue_delay_s + 1e-9
            assert sample.first_token_s <= sample.end_s
    again = result()
    assert (again.calls, again.runs) == (once.calls, once.runs)


def turns(second, *, prompt=9, output=6, blocks=((0, 2),)):
    """Return a run whose second call follows the first one's, a prompt of two blocks and a token."""
    return trace(run_of("r", call("a", (), 0.0, prompt, output, blocks=blocks), second))


@pytest.mark.parametrize(
    ("second", "cached"),
    [
        pytest.param(call("b", ["a"], 1.0, 18, blocks=[(0, 4)]), 12, id="it repeats the answer"),
        pytest.param(call("b", ["a"], 1.0, 14, blocks=[(0, 3)]), 8, id="it is too short for that"),
        pytest.param(call("b", ["a"], 1.0, 18, blocks=[(0, 2), (8, 2)]), 12, id="other key, same"),
        pytest.param(call("b", ["a"], 1.0, 18, blocks=[(0, 1), (8, 3)]), 4, id="another prompt"),
        pytest.param(call("b", (), 9.0, 18, blocks=[(0, 4)]), 8, id="it waits for another call"),
    ],
)
def test_a_paged_worker_caches_an_output_that_the_next_call_repeats(second, cached):
    samples = by_id(replay(turns(second), costs=replace(COSTS, loop="paged")))
    assert [sample.usage.cached_tokens for sample in samples] == [0, cached]
    samples = by_id(replay(turns(second)))
    assert samples[1].usage.cached_tokens == min(cached, 8)


def test_a_prompt_with_an_unique_end_says_nothing_about_its_output():
    longer = call("b", ["a"], 1.0, 18, blocks=[(0, 4)])
    what = turns(longer, blocks=[(0, 1)])
    samples = by_id(replay(what, costs=replace(COSTS, loop="paged")))
    assert samples[1].usage.cached_tokens == 4


def test_a_round_trip_delays_the_start():
    what = trace(run_of("r", call("a")))
    [sample] = replay(what, dispatch_delay_s=0.25).calls
    assert sample.queue_delay_s == 0.25
    assert replace(sample, queue_delay_s=0.0, first_token_s=1.0, end_s=2.0) == replay(what).calls[0]


def test_a_stopped_replay_counts_the_finished_work():
    runs = [run_of(f"r{n}", call("a", prompt=30, output=30)) for n in range(4)]
    result = replay(trace(*runs), until_s=5.5)
    running = [sample for sample in result.calls if sample.usage.prompt_tokens]
    assert {sample.outcome for sample in result.calls} == {"cancelled"}
    assert {sample.end_s for sample in result.calls} == {5.5}
    assert [sample.usage.output_tokens for sample in running] == [5]  # one more would not fit
    assert result.runs == []


def test_calls_that_report_their_start_only_are_as_fast_as_streamed_ones():
    """Without the start, the feed window is full until the answers end."""
    wide = costs(kv_capacity_tokens=4000, prefill_base_s=0.1, prefill_s_per_token=0.01)
    users = [
        run_of(f"r{at}", call("c", prompt=64, output=40), user=f"u{at % 4}") for at in range(160)
    ]
    ends = {}
    for reports in ("tokens", "starts", "ends"):
        result = replay(trace(*users), "fairserve", wide, call_reports=reports)
        assert {sample.outcome for sample in result.calls} == {"completed"}
        ends[reports] = max(sample.end_s for sample in result.calls)
    assert ends["starts"] <= 1.02 * ends["tokens"]
    assert ends["ends"] > 1.5 * ends["tokens"]
