"""Cache aware routing equals SGLang's three rules in a plain reference, and at each threshold."""

import pytest
from histories import histories
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call, prompt

from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.cache_aware import CacheAware, CacheAwareOptions

WORKERS = ["w0", "w1", "w2"]


def router(**options):
    locality = Locality(seed=1)
    made = CacheAware(locality, CacheAwareOptions(**options))
    for worker in WORKERS:
        locality.add_worker(worker, 100_000)
        made.add_worker(worker)
    return made, locality


def load(made, **calls):
    for worker, number in calls.items():
        for _ in range(number):
            made.dispatched(make_call("x"), worker, 1.0)


def reference(loads, held, tokens, open_workers, share, balance_abs, balance_rel):
    """Return the choice by plain lists of tokens; ``held`` are the prompts sent to each worker."""
    usable = [worker for worker in WORKERS if worker in open_workers]
    if not usable:
        return None

    def least(workers):
        return min(workers, key=lambda worker: loads[worker])

    most, fewest = max(loads.values()), min(loads.values())
    if most - fewest > balance_abs and most > balance_rel * fewest:
        return least(usable)
    match = {}
    for worker in usable:
        match[worker] = 0
        for other in held[worker]:
            common = 0
            while common < min(len(other), len(tokens)) and other[common] == tokens[common]:
                common += 1
            match[worker] = max(match[worker], min(common // 16 * 16, len(tokens) - 1))
    longest = max(match.values())
    if longest > share * len(tokens):
        return least([worker for worker in usable if match[worker] == longest])
    return least(usable)


@given(
    histories(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 5),
            st.integers(1, 60),
            st.sets(st.sampled_from(WORKERS)),
            st.booleans(),
        ),
        40,
    ),
    st.sampled_from([0.0, 0.3, 0.6]),
    st.integers(0, 4),
    st.sampled_from([1.0, 1.5, 3.0]),
)
def test_routing_equals_the_three_rules(steps, share, balance_abs, balance_rel):
    made, locality = router(match_threshold=share, balance_abs=balance_abs, balance_rel=balance_rel)
    loads = dict.fromkeys(WORKERS, 0)
    held = {worker: [] for worker in WORKERS}
    running = []
    for number, (document, blocks, rest, open_workers, ends) in enumerate(steps):
        tokens = prompt((document, 16 * blocks), (1000 + number, rest))
        call = make_call(f"c{number}", tokens=tokens)
        locality.register(call)
        expected = reference(
            loads, held, tokens.tolist(), open_workers, share, balance_abs, balance_rel
        )
        assert made.select(call, open_workers) == expected
        if expected is not None:
            made.dispatched(call, expected, 1.0)
            locality.placed(call, expected)
            loads[expected] += 1
            held[expected].append(tokens.tolist())
            running.append((call, expected))
        if ends and running:
            done, worker = running.pop(0)
            made.finished(done, worker, 1.0, 1)
            loads[worker] -= 1


def cached_at_w2(made, locality, share):
    """Return a call of which about ``share`` is cached at w2 only, and nothing elsewhere."""
    blocks = 100
    document = prompt((1, 16 * blocks))
    first = make_call("first", tokens=document[: round(16 * blocks * share)])
    locality.register(first)
    locality.placed(first, "w2")
    call = make_call("call", tokens=document)
    locality.register(call)
    return call


def test_a_match_overrides_load_while_balanced():
    made, locality = router()
    call = cached_at_w2(made, locality, 0.5)
    load(made, w0=1, w1=1, w2=65)
    assert made.select(call, WORKERS) == "w2", "65 - 1 is not over 64"
    load(made, w2=1)
    assert made.select(call, WORKERS) == "w0", "66 - 1 is"


def test_both_imbalance_conditions_are_needed():
    made, locality = router()
    call = cached_at_w2(made, locality, 0.5)
    load(made, w0=140, w1=140, w2=210)
    assert made.select(call, WORKERS) == "w2", "70 more, but not over 1.5 times as many"
    load(made, w2=1)
    assert made.select(call, WORKERS) == "w0"


@pytest.mark.parametrize(("share", "worker"), [(0.30, "w0"), (0.31, "w2")])
def test_a_short_match_is_ignored(share, worker):
    made, locality = router()
    call = cached_at_w2(made, locality, share)
    load(made, w1=1, w2=2)
    assert made.select(call, WORKERS) == worker


def test_balancing_may_be_disabled():
    made, locality = router(match_threshold=0.0, balance_abs=None)
    call = cached_at_w2(made, locality, 0.05)
    load(made, w2=10_000)
    assert made.select(call, WORKERS) == "w2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match_threshold": 1.5}, "match_threshold is 1.5; allowed: 0 to 1"),
        ({"balance_abs": -1}, "balance_abs is -1; allowed: 0 or more, or null"),
        ({"balance_rel": 0.5}, "balance_rel is 0.5; allowed: 1 or more"),
        ({"balance_rel": float("nan")}, "balance_rel is nan"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        CacheAwareOptions(**options)
