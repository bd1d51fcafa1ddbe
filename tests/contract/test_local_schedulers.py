"""Every local scheduler runs each call once, loses none, is deterministic, and bounded."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_worker import FixedCache, OneWorker

from fairserve.benchmarks.policies.drr import Drr, DrrOptions
from fairserve.benchmarks.policies.lcf import Lcf, LcfOptions
from fairserve.benchmarks.policies.preble_groups import PrebleGroups, PrebleGroupsOptions
from fairserve.benchmarks.policies.vtc_oracle import VtcOracle, VtcOracleOptions
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.local.lpm import Lpm, LpmOptions
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions

FACTORIES = {
    "fcfs": Fcfs,
    "dlpm": lambda: Dlpm(DlpmOptions(quantum=200, max_bypass=0)),
    "dlpm-bypass": lambda: Dlpm(DlpmOptions(quantum=200)),
    "vtc": Vtc,
    "vtc-extend": lambda: Vtc(VtcOptions(cost="extend")),
    "vtc-profiled": lambda: Vtc(VtcOptions(cost="profiled")),
    "vtc-mean": lambda: Vtc(VtcOptions(predict="mean")),
    "vtc-oracle": lambda: VtcOracle(),
    "vtc-noisy": lambda: VtcOracle(VtcOracleOptions(noise=0.5, seed=3)),
    "lcf": lambda: Lcf(LcfOptions(remembered_clients=200)),
    "drr": Drr,
    "drr-fine": lambda: Drr(DrrOptions(quantum=0.5)),
    "lpm": Lpm,
    "lpm-skip": lambda: Lpm(LpmOptions(when_full="skip")),
    "preble_groups": PrebleGroups,
    "preble_groups-skip": lambda: PrebleGroups(PrebleGroupsOptions(when_full="skip")),
}
NAMES = list(FACTORIES)
STOPS_AT_A_MISFIT = [
    name for name in NAMES if not name.endswith("skip") and not name.startswith("dlpm")
]
OFFERS_ALL_THAT_MAY_FIT = ["dlpm", "lpm-skip"]

every = pytest.mark.parametrize("name", NAMES)
every_class = pytest.mark.parametrize(
    "name", list({type(FACTORIES[name]()): name for name in reversed(NAMES)}.values())
)
"""Schedulers for tests that do not depend on options."""


def call(call_id, client="c", prompt=10, output=5, **more):
    return LocalCall(call_id, client, prompt, output, output_tokens=output, **more)


def random_call(worker, rng):
    prompt = rng.randint(1, 120)
    output = rng.randint(1, 30)
    return worker.add(
        f"k{rng.randrange(6)}",
        prompt,
        output,
        longest=output + rng.choice([0, 0, 20]),
        matched=rng.choice([0, prompt // 3, prompt - 1]),
        weight=rng.choice([0.5, 1.0, 3.0]),
    )


def busy(name, seed, *, steps=150, reserve=True):
    """Return the log of random arrivals, cancellations, preemptions and cache changes."""
    rng = random.Random(seed)
    worker = OneWorker(FACTORIES[name](), 400, reserve=reserve)
    cancelled = []
    for _ in range(steps):
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            random_call(worker, rng)
        if rng.random() < 0.2 and (ids := [*worker.waiting, *worker.running]):
            cancelled.append(rng.choice(ids))
            worker.finish(cancelled[-1])
        if rng.random() < 0.2 and worker.running:
            worker.preempt(rng.choice(list(worker.running)))
        if rng.random() < 0.3:
            for call_id in rng.sample(sorted(worker.waiting), len(worker.waiting) // 2):
                worker.cache.change(call_id, rng.randrange(60))
        worker.step()
    return worker, cancelled


@every
@pytest.mark.parametrize("reserve", [True, False])
def test_each_call_runs_once_unless_preempted_or_cancelled(name, seed, reserve):
    worker, cancelled = busy(name, seed, reserve=reserve)
    worker.drain()
    assert worker.numbers > 100
    assert worker.preempted
    assert cancelled
    assert len(worker.ended) == len(set(worker.ended)) == worker.numbers
    assert set(worker.order) | set(cancelled) == set(worker.ended)
    for call_id in set(worker.order):
        again = worker.preempted.count(call_id) + 1
        assert worker.order.count(call_id) in (
            {again - 1, again} if call_id in cancelled else {again}
        )
    assert len(worker.scheduler) == 0


@every
def test_the_length_is_the_number_of_waiting_calls(name):
    worker, _ = busy(name, 4, steps=60)
    assert len(worker.scheduler) == len(worker.waiting) > 0


@every
def test_equal_input_gives_an_equal_schedule(name):
    runs = [busy(name, 7)[0] for _ in range(2)]
    assert runs[0].order == runs[1].order
    assert runs[0].ended == runs[1].ended


@every
@given(st.integers(0, 2**32))
def test_peek_is_stable_until_accept_or_skip(name, seed):
    """Arrivals, ends and preemptions between two peeks do not change the offer while it exists."""
    rng = random.Random(seed)
    worker = OneWorker(FACTORIES[name](), 400)
    scheduler = worker.scheduler
    for _ in range(12):
        random_call(worker, rng)
    scheduler.start_pass(worker.cache)
    while (offered := scheduler.peek()) is not None:
        others = [call_id for call_id in worker.waiting if call_id != offered.call_id]
        event = rng.randrange(4)
        if event == 0:
            random_call(worker, rng)
        elif event == 1 and others:
            worker.finish(rng.choice(others))
        elif event == 2 and worker.running:
            scheduler.decoded(next(iter(worker.running)), 3)
        elif event == 3 and worker.running:
            worker.preempt(rng.choice(list(worker.running)))
        assert scheduler.peek() is offered
        if rng.random() < 0.3:
            scheduler.skip()
            again = scheduler.peek()
            assert again is None or again is not offered
        else:
            scheduler.accept(0)
            worker.running[offered.call_id] = worker.waiting.pop(offered.call_id)
            worker.held[offered.call_id] = 0
    assert scheduler.peek() is None, "a pass that is over stays over"


@every
def test_a_cancelled_offer_is_withdrawn(name):
    scheduler, cache = FACTORIES[name](), FixedCache()
    for number in range(3):
        scheduler.add(call(f"x{number}", f"c{number}"))
    scheduler.start_pass(cache)
    offered = scheduler.peek()
    scheduler.finish(offered.call_id)
    following = scheduler.peek()
    assert following is not None
    assert following is not offered
    scheduler.accept(0)
    scheduler.finish(following.call_id)
    assert len(scheduler) == 1


@every
def test_a_skipped_call_is_offered_again_in_the_next_pass(name):
    scheduler, cache = FACTORIES[name](), FixedCache()
    scheduler.add(call("x"))
    for _ in range(3):
        scheduler.start_pass(cache)
        assert scheduler.peek().call_id == "x"
        scheduler.skip()
        assert scheduler.peek() is None
    assert len(scheduler) == 1


@pytest.mark.parametrize("name", STOPS_AT_A_MISFIT)
def test_no_call_overtakes_one_that_does_not_fit(name):
    scheduler, cache = FACTORIES[name](), FixedCache()
    for number in range(4):
        scheduler.add(call(f"x{number}", f"c{number}"))
    scheduler.start_pass(cache)
    first = scheduler.peek()
    scheduler.skip()
    assert scheduler.peek() is None
    scheduler.start_pass(cache)
    assert scheduler.peek() is first


@pytest.mark.parametrize("name", STOPS_AT_A_MISFIT)
def test_a_pass_ends_with_an_empty_queue_or_at_a_call_that_does_not_fit(name):
    worker, _ = busy(name, 8, steps=80)
    passes = 0
    while worker.waiting:
        _, skipped = worker.admit()
        # with fewer than ten calls Preble's shares never end a pass
        assert (
            not worker.waiting or skipped or (name == "preble_groups" and len(worker.waiting) > 9)
        )
        worker.decode()
        passes += 1
    assert passes > 5


@pytest.mark.parametrize("name", OFFERS_ALL_THAT_MAY_FIT)
def test_no_fitting_call_is_left_waiting(name):
    worker, _ = busy(name, 8, steps=80)
    passes = 0
    while worker.waiting:
        worker.admit()
        assert not any(worker.fits(waiting) for waiting in worker.waiting.values())
        worker.decode()
        passes += 1
    assert passes > 5


@every
def test_a_preempted_call_keeps_its_age(name):
    """Among otherwise equal calls of one client, the order is by arrival."""
    scheduler, cache = FACTORIES[name](), FixedCache()
    for number in range(4):
        scheduler.add(call(f"x{number}"))
    scheduler.start_pass(cache)
    for number in range(3):
        assert scheduler.peek().call_id == f"x{number}"
        scheduler.accept(0)
    scheduler.requeue("x2")  # as engines preempt: the last admitted first
    scheduler.requeue("x1")
    scheduler.start_pass(cache)
    order = []
    while (offered := scheduler.peek()) is not None:
        order.append(offered.call_id)
        scheduler.accept(0)
    assert order == ["x1", "x2", "x3"]


@every_class
def test_call_ids_are_checked(name):
    scheduler, cache = FACTORIES[name](), FixedCache()
    scheduler.add(call("x"))
    with pytest.raises(ValueError, match="already scheduled"):
        scheduler.add(call("x", "other"))
    scheduler.start_pass(cache)
    assert scheduler.peek().call_id == "x"
    scheduler.accept(0)
    with pytest.raises(ValueError, match="already scheduled"):
        scheduler.add(call("x"))
    for method in (scheduler.finish, scheduler.requeue):
        with pytest.raises(KeyError):
            method("nobody")
    scheduler.finish("x")
    with pytest.raises(KeyError):
        scheduler.finish("x")
    with pytest.raises(KeyError):
        scheduler.requeue("x")
    scheduler.add(call("x"))
    with pytest.raises(KeyError):
        scheduler.requeue("x")
    assert len(scheduler) == 1, "an id may be used again when its call has ended"


@every_class
def test_only_running_calls_decode(name):
    scheduler = FACTORIES[name]()
    scheduler.add(call("x"))
    for call_id in ("x", "nobody"):
        with pytest.raises(KeyError):
            scheduler.decoded(call_id, 1)


@every_class
def test_the_surplus_covers_running_calls(name):
    scheduler, cache = FACTORIES[name](), FixedCache()
    scheduler.add(call("x"))
    for call_id in ("x", "nobody"):
        with pytest.raises(KeyError):
            scheduler.surplus(call_id)
    scheduler.start_pass(cache)
    scheduler.peek()
    scheduler.accept(0)
    assert scheduler.surplus("x") == scheduler.surplus("x")


@pytest.mark.parametrize("name", ["vtc", "vtc-extend", "vtc-mean", "lcf", "drr", "dlpm"])
def test_the_client_with_more_service_has_a_surplus(name):
    """Two clients run, and two tenants whose users are the other way round."""
    scheduler, cache = FACTORIES[name](), FixedCache()
    for client, tenant in (("much", "few"), ("little", "few"), ("least", "many")):
        scheduler.add(call(client, client, path=(tenant, client)))
    scheduler.start_pass(cache)
    for _ in range(3):
        scheduler.peek()
        scheduler.accept(0)
    for client, tokens in (("much", 300), ("little", 100), ("least", 200)):
        scheduler.decoded(client, tokens)
    much, little, least = (scheduler.surplus(client) for client in ("much", "little", "least"))
    assert much > little
    assert little > least, "its tenant has had 400 of 600"


def size_of(state, seen=None):
    """Return the number of elements of all containers that an object holds, directly or indirectly."""
    seen = set() if seen is None else seen
    if id(state) in seen or isinstance(state, (str, bytes, int, float, type)):
        return 0
    seen.add(id(state))
    if isinstance(state, dict):
        return len(state) + sum(size_of(value, seen) for value in state.values())
    if isinstance(state, (list, tuple, set, frozenset, deque)):
        return len(state) + sum(size_of(value, seen) for value in state)
    slots = (name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ()))
    held = [getattr(state, name, None) for name in slots]
    return sum(size_of(value, seen) for value in [*held, *getattr(state, "__dict__", {}).values()])


@pytest.mark.parametrize(
    "name", ["fcfs", "dlpm", "vtc", "vtc-mean", "lcf", "drr", "lpm", "preble_groups"]
)
def test_ended_calls_are_forgotten(name):
    """10,000 calls of 10,000 clients leave no more than what is intentionally kept about clients."""
    worker = OneWorker(FACTORIES[name](), 2000)
    for number in range(2_000):
        ids = [worker.add(f"invented{number}-{i}", 5, 1 + i % 3) for i in range(5)]
        worker.finish(ids[number % 5])
        worker.step()
    worker.drain()
    worker.scheduler.start_pass(worker.cache)
    remembered = 10_000 * 7 if name == "vtc-mean" else 0  # up to five outputs of 10,000 clients
    assert size_of(worker.scheduler, {id(worker.cache)}) - remembered < 8_000


@every_class
def test_cancelling_waiting_calls_leaves_nothing(name):
    """A queue without a pass does not grow while calls arrive and are cancelled."""
    scheduler, cache = FACTORIES[name](), FixedCache()
    scheduler.add(call("stays", "c0"))
    scheduler.start_pass(cache)
    for number in range(3_000):
        scheduler.add(call(f"x{number}", f"c{number % 7}"))
        scheduler.finish(f"x{number}")
    assert size_of(scheduler, {id(cache)}) < 500
