"""The gate of runs: what residents hold, and in which order runs begin and continue."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from random_events import RandomEvents, outcome

from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.residents import held_prefixes
from fairserve.scheduling.residents.held_prefixes import HeldPrefixes, prefix_of, prompt_prefix

BLOCK = 16
PARTS = [
    (depth - before) * BLOCK
    for before, depth in zip((0, *held_prefixes._CUTS), held_prefixes._CUTS, strict=False)
]
"""Tokens up to each cut of a prompt."""
GATED = SYSTEMS["fairserve"].with_options({"resident_share": 0.3, "hold_s": 25.0})


def started(seed):
    """Return a dispatcher, its events, and the calls that it has sent to workers so far."""
    source = RandomEvents(random.Random(seed), refusals=False)
    dispatcher = Dispatcher(GATED, seed=1)
    for event in source.begin():
        source.took(dispatcher.handle(event, source.now_s))
    return dispatcher, source


def held_at(pool):
    """Return the union of the residents' prefixes by worker."""
    keys, tokens = {}, dict.fromkeys(pool.worker_table.workers, 0)
    for each in pool.gate.residents.all():
        for prefix in each.prefixes:
            tokens[each.worker_id] += prefix.rest
            keys.setdefault(each.worker_id, {}).update(parts(prefix))
    return {worker: sum(keys.get(worker, {}).values()) + held for worker, held in tokens.items()}


def parts(prefix):
    """Return the tokens from each cut of a prompt to the next one, by key."""
    if not prefix.keys:
        return {}
    last = prefix.depth * BLOCK - sum(PARTS[: len(prefix.keys) - 1])
    return dict(zip(prefix.keys, [*PARTS[: len(prefix.keys) - 1], last], strict=True))


def whole(prefix):
    return sum(parts(prefix).values()) + prefix.rest


def needed_at(pool):
    """Return the most that the residents of each worker need together, by its definition."""
    needed = {}
    for worker, held in held_at(pool).items():
        runs = [each for each in pool.gate.residents.all() if each.worker_id == worker]
        tokens = [sum(map(whole, each.prefixes)) for each in runs]
        calls = [2 ** (round(4 * math.log2(1 + each.further_calls)) / 4) - 1 for each in runs]
        own = min(1.0, held / sum(tokens)) if sum(tokens) else 1.0
        needed[worker] = held
        for end in calls:
            left = sum(tokens[n] for n in range(len(runs)) if calls[n] < end)
            grown = sum(
                runs[n].growth * end / calls[n] for n in range(len(runs)) if calls[n] >= end > 0
            )
            needed[worker] = max(needed[worker], held - own * left + grown)
    return needed


def check_counts(dispatcher):
    """Compare what the residents believe with the calls in progress."""
    live = dispatcher._live
    for model, pool in dispatcher.pools.items():
        for worker_id, tokens in needed_at(pool).items():
            assert abs(pool.gate.residents.held_tokens(worker_id) - tokens) <= 1.0
        for each in pool.gate.residents.all():
            assert (each.last is None) == bool(each.calls)
            for call_id in each.calls:
                call = live[call_id].call
                assert (call.interaction_id, call.pool, call.background) == (
                    each.run_id,
                    model,
                    False,
                )


@given(st.integers(0, 2**32))
def test_footprints_and_counts_follow_the_calls(seed):
    dispatcher, source = started(seed)
    for _ in range(80):
        commands = outcome(dispatcher, source.next(), source.now_s)
        source.took(commands if isinstance(commands, list) else ())
        check_counts(dispatcher)


@given(st.integers(0, 2**32))
def test_a_run_begins_only_where_it_fits(seed):
    """At a worker with residents, the footprints stay within the share when a run begins.

    One of which no further call is expected may use all of the cache.
    """
    dispatcher, source = started(seed)
    for _ in range(80):
        known = {
            model: {each.run_id for each in pool.gate.residents.all()}
            for model, pool in dispatcher.pools.items()
        }
        begun = {
            model: set(pool.feeder._active_runs.interactions)
            for model, pool in dispatcher.pools.items()
        }
        event = source.next()
        commands = outcome(dispatcher, event, source.now_s)
        commands = commands if isinstance(commands, list) else []
        source.took(commands)
        if sum(isinstance(each, ev.Admit) for each in commands) != 1:
            continue  # other calls of runs in progress were sent, too
        for model, pool in dispatcher.pools.items():
            residents = pool.gate.residents
            new = [
                each
                for each in residents.all()
                if each.run_id not in known.get(model, ())
                and each.run_id not in begun.get(model, ())
            ]
            for each in new:
                others = [
                    other
                    for other in residents.all()
                    if other is not each and each.worker_id == other.worker_id
                ]
                capacity = pool.worker_table.workers[each.worker_id].kv_capacity_tokens
                if others:
                    share = 0.3 if live_call(dispatcher, each).remaining_calls > 1.0 else 1.0
                    assert needed_at(pool)[each.worker_id] <= share * capacity + 1e-6


def live_call(dispatcher, resident):
    """Return the only call of a resident that has just begun."""
    (call_id,) = resident.calls
    return dispatcher._live[call_id].call


PROMPTS = st.tuples(st.text("ab", max_size=30), st.integers(0, 15), st.integers(0, 30))
"""Letters, of which each is a block, tokens behind them, and blocks that a cache has at first."""


@given(st.lists(PROMPTS, max_size=12), st.data())
def test_shared_prefixes_count_once(prompts, data):
    """Never less than all different blocks, never more than the prompts without sharing."""
    held, present = HeldPrefixes(BLOCK), []

    def check():
        blocks = {text[:depth] for text, *_ in present for depth in range(1, len(text) + 1)}
        tails = sum(tail for _, tail, _ in present)
        assert held.tokens >= len(blocks) * BLOCK + tails
        assert held.tokens <= sum(len(text) * BLOCK + tail for text, tail, _ in present)

    def prefix(text, tail, matched):
        keys = [hash(text[:depth]) for depth in range(1, len(text) + 1)]
        prompt = prompt_prefix(keys, BLOCK, len(text) * BLOCK)
        return prefix_of(prompt, keys, BLOCK, tail, matched * BLOCK)

    for prompt in prompts:
        before, added = held.tokens, held.would_add(prefix(*prompt))
        held.add(prefix(*prompt))
        present.append(prompt)
        assert held.tokens == before + added
        if present.count(prompt) > 1:
            assert added <= BLOCK * len(prompt[0]) / 5 + BLOCK + prompt[1]
        check()
    for prompt in data.draw(st.permutations(present)):
        held.remove(prefix(*prompt))
        present.remove(prompt)
        check()
    assert held.tokens == 0
    assert not held._holders
