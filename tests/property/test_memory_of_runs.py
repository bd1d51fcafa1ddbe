"""Agents whose contexts together exceed the KV cache, in virtual time, with and without residents."""

import random
from dataclasses import replace
from functools import cache

import pytest

from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.scheduling.registry import SYSTEMS

COSTS = replace(COST_MODELS["a100-llama3-8b"], kv_capacity_tokens=150_000)
BLOCK = 64
TURNS = 8


def session(number, rng, *, user, tenant):
    """Return an agent's run: each call repeats the last prompt and adds to it, after a tool call."""
    context, calls = rng.randint(8000, 12_000), []
    for turn in range(TURNS):
        calls.append(
            TraceCall(
                str(turn),
                "agent",
                (str(turn - 1),) if turn else (),
                rng.expovariate(1 / 4.0) if turn else 0.0,
                *(context, 0, rng.randint(50, 100)),
                blocks=((1 + 10_000 * number, context // BLOCK),),
            )
        )
        context += rng.randint(1000, 3000)
    return Interaction(f"s{number}", tenant, "agent", user, number * 0.1, tuple(calls))


def replayed(sessions, options, until_s=float("inf")):
    system = SYSTEMS["fairserve"].with_options(options)
    trace = Trace("sessions", BLOCK, ()).with_interactions(sessions)
    return Replay(trace, system, COSTS, ReplayOptions(until_s=until_s)).run()


def many_sessions(count, *, users=lambda number: f"u{number % 4}"):
    rng = random.Random(1)
    return [
        session(number, rng, user=users(number), tenant=f"t{number % 2}") for number in range(count)
    ]


def test_residents_keep_the_prefixes_of_runs_that_exceed_the_cache():
    """Three times the cache: without residents each call evicts what another's next call needs."""
    sessions, figures = many_sessions(40), {}
    for share in (None, 0.8):
        calls = replayed(sessions, {"resident_share": share}).calls
        assert len(calls) == 40 * TURNS
        cached = sum(call.usage.cached_tokens for call in calls)
        prompts = sum(call.usage.prompt_tokens for call in calls)
        figures[share] = max(call.end_s for call in calls), cached / prompts
    (end_s, hits), (gated_end_s, gated_hits) = figures[None], figures[0.8]
    assert gated_end_s < 0.6 * end_s, figures
    assert gated_hits > 0.7 > 0.4 > hits, figures


def test_calls_of_runs_in_progress_do_not_wait_for_runs_that_have_not_begun():
    """Also where each run has a new user, who is behind all others."""
    sessions = many_sessions(40, users=lambda number: f"new {number}")
    waits = [
        call.first_token_s - call.arrival_s
        for call in replayed(sessions, {"resident_share": 0.8}).calls
        if call.arrival_s > 10.0
    ]
    begun = sorted(waits)[: len(waits) * 95 // 100]
    assert begun[-1] < 10.0, begun[-5:]


def test_residents_change_nothing_where_all_runs_fit():
    few = many_sessions(5)
    ends = [
        max(call.end_s for call in replayed(few, {"resident_share": share}).calls)
        for share in (None, 0.8)
    ]
    assert ends[0] == ends[1]


UNTIL_S = 300.0


def sessions_of(tenant, count, gap_s, *, users=4, scale=1.0, pause_s=None):
    """Return the runs of a tenant, each of one of its users, or of a new user if there are none."""
    runs, first = [], 1000 * len(tenant)
    rng = random.Random(first)
    for number in range(count):
        user = f"{tenant} {number % users if users else number}"
        each = session(first + number, rng, user=user, tenant=tenant)
        calls = [
            replace(
                call,
                gap_s=pause_s if pause_s is not None and call.gap_s else call.gap_s,
                input_tokens=int(scale * call.input_tokens),
                blocks=tuple((key, int(scale * length)) for key, length in call.blocks),
            )
            for call in each.calls
        ]
        name, at_s = f"{tenant}-{number}", gap_s * number
        runs.append(
            replace(each, interaction_id=name, app=tenant, arrival_s=at_s, calls=tuple(calls))
        )
    return runs


def honest_tokens(others):
    """Return the tokens served to a tenant with more work than fits, beside others."""
    runs = [*sessions_of("honest", 100, 1.0), *others]
    calls = replayed(runs, {}, UNTIL_S).calls
    return sum(
        call.usage.prompt_tokens + call.usage.output_tokens
        for call in calls
        if call.client.startswith("honest") and call.outcome == "completed"
    )


@cache
def tokens_alone():
    return honest_tokens([])


@pytest.mark.parametrize(
    "others",
    [
        {"count": 1000, "gap_s": 0.1},
        {"count": 100, "gap_s": 1.0, "scale": 3.0},
        {"count": 200, "gap_s": 0.5, "users": 0},
        {"count": 200, "gap_s": 0.5, "pause_s": 25.0},
        {"count": 1000, "gap_s": 0.1, "scale": 0.1},
    ],
    ids=[
        "ten-times-as-many",
        "three-times-the-context",
        "each-of-a-new-user",
        "idle-most-of-the-time",
        "small",
    ],
)
def test_a_tenant_gets_its_half_beside_one_that_crowds_the_memory(others):
    """In tokens; both are entitled to half."""
    share = honest_tokens(sessions_of("crowd", **others)) / tokens_alone()
    assert share > 0.5 * 0.95


def single(name, at_s, tokens, output):
    call = TraceCall("0", "agent", (), 0.0, tokens, 0, output)
    tenant = name.split()[0]
    return Interaction(name, tenant, tenant, "u", at_s, (call,))


def test_a_call_that_has_to_wait_for_room_delays_nobody_who_has_it():
    """One keeps more than half of the cache for minutes, another needs a half; all others fit beside."""
    rng, tokens = random.Random(1), COSTS.kv_capacity_tokens
    honest = [
        single(f"honest {number}", 0.4 * number, rng.randint(500, 2000), rng.randint(50, 150))
        for number in range(500)
    ]
    evil = [
        single("evil hold", 10.0, int(0.55 * tokens) - 12_000, 12_000),
        single("evil wall", 14.0, tokens // 2, 16),
    ]
    calls = replayed(honest + evil, {}, UNTIL_S).calls
    (hold,) = (call for call in calls if call.interaction_id == "evil hold")
    waits = [
        call.first_token_s - call.arrival_s
        for call in calls
        if call.client.startswith("honest") and 40.0 < call.arrival_s < hold.end_s - 5.0
    ]
    assert len(waits) > 200
    assert max(waits) < 1.0
