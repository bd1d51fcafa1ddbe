"""When the cache is full, sequences are preempted and lose only time."""

from itertools import product

import numpy as np
import pytest
from hypothesis import settings

from fairserve.benchmarks.policies.drr import Drr
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import Admitted, Failed, Generated
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.registry import LOCAL_SCHEDULERS


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def preempted_by_client(bench, monkeypatch):
    """Return the clients in the order in which their sequences are preempted."""
    victims = []
    preempt = type(bench.engine.batcher).preempt

    def record(self, sequence):
        victims.append(sequence.call.client_id)
        preempt(self, sequence)

    monkeypatch.setattr(type(bench.engine.batcher), "preempt", record)
    return victims


@pytest.mark.parametrize("make", [Vtc, Drr, lambda: Dlpm(DlpmOptions(quantum=100))])
def test_fair_preempts_the_client_with_most_service(make, make_bench, monkeypatch):
    """The flooder's calls are preempted, although the other's was admitted last."""
    scheduler = make()
    bench = make_bench(scheduler=scheduler, kv_tokens=20 * 16, spare_share=0.0)
    victims = preempted_by_client(bench, monkeypatch)
    for index in range(4):
        bench.add(f"f{index}", prompt(index, 40), 60, client="flooder", ignore_eos=True)
    bench.engine.step()
    bench.add("o", prompt(9, 40), 60, client="other", ignore_eos=True)
    bench.run()
    assert victims
    assert set(victims) == {"flooder"}


def test_latest_preempts_the_last_admitted_sequence(make_bench, monkeypatch):
    bench = make_bench(scheduler=Vtc(), kv_tokens=20 * 16, spare_share=0.0, preemption="latest")
    victims = preempted_by_client(bench, monkeypatch)
    for index in range(4):
        bench.add(f"f{index}", prompt(index, 40), 60, client="flooder", ignore_eos=True)
    for _ in range(5):
        bench.engine.step()
    bench.add("n", prompt(9, 40), 60, client="newcomer", ignore_eos=True)
    bench.run()
    assert victims[0] == "newcomer"


def test_without_preemption_the_whole_output_is_reserved(make_bench):
    """Two sequences of 48 tokens fit into 7 pages; three fit as long as they are short."""
    together = {}
    for preemption in ("never", "fair"):
        bench = make_bench(kv_tokens=7 * 16, preemption=preemption, spare_share=0.0)
        for index in range(3):
            bench.add(f"s{index}", prompt(index, 20), 28, ignore_eos=True)
        bench.engine.step()
        together[preemption] = len(bench.engine.running)
        bench.run()
        assert (bench.engine.stats().preempted == 0) == (preemption == "never")
    assert together == {"never": 2, "fair": 3}


@pytest.mark.parametrize("weigh", ["prompt", "output"])
def test_a_preempted_call_is_charged_once(weigh, make_bench):
    """A preemption does not change the final counter of its client."""
    weights = {"wp": 1.0, "wq": 0.0} if weigh == "prompt" else {"wp": 0.0, "wq": 1.0}
    ends = []
    for kv_tokens in (8 * 16, 100 * 16):
        scheduler = LOCAL_SCHEDULERS["vtc"](**weights)
        bench = make_bench(scheduler=scheduler, kv_tokens=kv_tokens, spare_share=0.0)
        bench.add("hold", prompt(50, 1), 60, ignore_eos=True)
        for index in range(4):
            bench.add(f"s{index}", prompt(index, 20 + index), 24, ignore_eos=True)
        bench.run()
        ends.append(scheduler.counter(("c",)))
        assert (bench.engine.stats().preempted > 0) == (kv_tokens == 8 * 16)
        assert bench.engine.stats().prompt_tokens == 1 + sum(20 + index for index in range(4))
        assert bench.engine.stats().generated_tokens == 60 + 4 * 24
    assert ends[0] == ends[1] > 0


def test_a_preempted_sequence_keeps_its_position_and_emits_nothing(make_bench):
    bench = make_bench(scheduler=Fcfs(), kv_tokens=10 * 16, max_batch=2, spare_share=0.0)
    for index in range(4):
        bench.add(f"s{index}", prompt(index, 40), 60, ignore_eos=True)
    bench.run()
    assert bench.engine.stats().preempted
    ends = [event.sequence_id for event in bench.events if getattr(event, "finish_reason", None)]
    assert ends == ["s0", "s1", "s2", "s3"]
    for index in range(4):
        assert len(bench.of(f"s{index}", Admitted)) == 1
        assert sum(event.tokens for event in bench.of(f"s{index}", Generated)) == 60


def test_a_preempted_sequence_reuses_its_cached_pages(make_bench, monkeypatch):
    bench = make_bench(kv_tokens=40 * 16, max_batch=2, overlap=False)
    bench.add("s", prompt(1, 60), 40, ignore_eos=True)
    for _ in range(20):
        bench.engine.step()
    (sequence,) = bench.engine.running
    held = len(sequence.tokens)
    bench.engine.batcher.preempt(sequence)
    assert bench.engine.stats().waiting == 1
    bench.engine.cache.check([])
    bench.engine.step()
    assert sequence.computed_tokens == held
    assert sequence.prefill_tokens - held == 0
    assert bench.engine.stats().prefix_hit_tokens == 0, "it found its own pages, not a prefix"
    bench.run()


def test_a_cancelled_preempted_sequence_is_removed(make_bench):
    bench = make_bench(kv_tokens=12 * 16, spare_share=0.0)
    for index in range(3):
        bench.add(f"s{index}", prompt(index, 30), 80, ignore_eos=True)
    while not bench.engine.stats().preempted:
        bench.engine.step()
    running = {sequence.sequence_id for sequence in bench.engine.running}
    (victim, *_) = {"s0", "s1", "s2"} - running
    bench.engine.cancel(victim)
    bench.run()
    assert bench.engine.stats().cancelled == 1
    assert not any(event.finish_reason for event in bench.of(victim, Generated))


QUICK = {("fcfs", "fair", False), ("fcfs", "latest", True)}
QUICK |= {(name, "fair", True) for name in ("fcfs", "vtc", "dlpm")}
EVERY = [("fcfs", "latest", overlap) for overlap in (True, False)]
EVERY += product(LOCAL_SCHEDULERS, ["fair"], [True, False])


@pytest.mark.parametrize(
    ("name", "preemption", "overlap"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.deep) for case in EVERY],
)
def test_random_operations_leak_no_page(name, preemption, make_bench, seed):
    """No page leaks and every sequence ends, with each scheduler."""
    random = np.random.default_rng(seed)
    bench = make_bench(
        scheduler=LOCAL_SCHEDULERS[name](),
        kv_tokens=16 * 30,
        token_budget=48,
        preemption=preemption,
        spare_share=0.0,
    )
    long = [f"long{number}" for number in range(4)]
    for number, each in enumerate(long):  # together they outgrow the cache, whatever is drawn below
        bench.add(each, prompt(3 + number, 60)[:59], 89, client=f"c{number % 3}", ignore_eos=True)
    names = []
    for number in range(2 * settings.default.max_examples):
        if random.integers(2):
            tokens = prompt(int(random.integers(3)), 60)[: int(random.integers(1, 60))]
            names.append(f"s{number}")
            client = f"c{random.integers(3)}"
            most = int(random.integers(1, 90))
            bench.add(names[-1], tokens, most, client=client, ignore_eos=True)
        if names and random.integers(6) == 0:
            bench.engine.cancel(names[int(random.integers(len(names)))])
        bench.engine.step()
        bench.engine.cache.check(bench.engine.running)
    bench.run()
    stats = bench.engine.stats()
    assert stats.preempted > 0
    assert stats.finished + stats.cancelled == len(long) + len(names)
    assert not [event for event in bench.events if isinstance(event, Failed)]
    assert bench.engine.cache.used_share == 0


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [({"preemption": "oldest"}, "fair, latest, never"), ({"spare_share": 1.0}, "0 to")],
)
def test_invalid_options_are_rejected(wrong, allowed):
    with pytest.raises(ValueError, match=allowed):
        EngineOptions(kv_tokens=1024, **wrong)
