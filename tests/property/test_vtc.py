"""Test VTC's theorems on one worker, on random backlogs and adversarial arrivals, outputs reserved.

Each is checked after every event that may change a quantity, not only between steps.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_worker import OneWorker
from vtc_watch import EPS, adversarial, bound, cases

from fairserve.benchmarks.policies.lcf import Lcf, LcfOptions
from fairserve.benchmarks.policies.vtc_oracle import VtcOracle, VtcOracleOptions
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions


@given(cases)
def test_the_theorems_hold_on_adversarial_arrivals(case):
    """Check Lemma 4.3, Theorems 4.4, 4.9, 4.13 (its proof: Wf >= T/n - 4U while f is backlogged)."""
    _, watch = adversarial(case, Vtc(VtcOptions(wq=case["wq"])))
    most = bound(case)
    assert watch.spread <= most + EPS
    assert watch.backlogged_difference <= 2 * most + EPS
    assert watch.lag <= 4 * most + EPS
    assert watch.shortfall <= 4 * most + EPS


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_an_idle_client_is_dispatched_within_the_latency_bound(seed, clients):
    """Theorem 4.11: at most 2 (n - 1) U of service precede the client, hence 2 (n - 1) U / a."""
    rng = random.Random(seed)
    worker = OneWorker(Vtc(), 300)
    for flood in range(clients - 1):
        for _ in range(200):
            worker.add(f"flood{flood}", rng.choice([1, 60]), rng.randint(1, 40))
    for _ in range(rng.randrange(30, 80)):
        worker.step()
    before = sum(worker.service.values())
    slowest, steps = float("inf"), 0
    asked = worker.add("quiet", 60, 10)
    while asked in worker.waiting:
        at = sum(worker.service.values())
        worker.step()
        steps += 1
        slowest = min(slowest, sum(worker.service.values()) - at)
    most = 2 * (clients - 1) * max(60, 2 * 300)
    given_to_others = sum(worker.service.values()) - before - 60 - 2.0
    assert given_to_others <= most
    assert steps - 1 <= most / slowest


def test_a_client_below_its_share_is_fully_served():
    """Theorem 4.13: a tenth of an equal share is served in full while the other three flood."""
    worker = OneWorker(Vtc(), 400)
    waited = []
    asked = {}
    for step in range(2000):
        for flood in range(3):
            while sum(c.client_id == f"flood{flood}" for c in worker.waiting.values()) < 5:
                worker.add(f"flood{flood}", 30, 20)
        if step % 100 == 0:
            asked[worker.add("modest", 30, 20)] = step
        waited += [step - asked[call_id] for call_id in worker.step() if call_id in asked]
    assert len(waited) == 20
    assert worker.service["modest"] == 20 * 70.0
    assert max(waited) <= 20, "one turn of the batch"


@pytest.mark.parametrize("scheduler", [Vtc, Lcf])
def test_weights_divide_the_service(scheduler):
    """Weights 1:2:3:4 (Figure 16); the normalised service obeys Theorem 4.4 with the charge's U."""
    worker = OneWorker(scheduler(), 600)
    weights = {f"k{weight}": float(weight) for weight in (1, 2, 3, 4)}
    rng = random.Random(1)
    for _ in range(500):
        for client, weight in weights.items():
            worker.add(client, rng.randint(10, 60), rng.randint(5, 30), weight=weight)
    for _ in range(600):
        worker.step()
    assert worker.backlogged() == set(weights)
    normalised = [worker.service[client] / weight for client, weight in weights.items()]
    assert max(normalised) - min(normalised) <= 2 * (2 * 600)
    for client, weight in weights.items():
        assert worker.service[client] / sum(worker.service.values()) == pytest.approx(
            weight / 10, rel=0.08
        )


@given(cases)
def test_with_preemption_the_bound_uses_the_longest_outputs(case):
    """Without reserved outputs Lemma 4.3 holds with wq * B * longest output in place of wq * M."""
    batch = 12
    case["capacity"] = 600
    worker, watch = adversarial(
        case, Vtc(VtcOptions(wq=case["wq"])), reserve=False, max_batch=batch
    )
    most = case["longest_prompt"] + case["wq"] * batch * case["longest_output"]
    assert watch.spread <= most + EPS
    assert watch.backlogged_difference <= 2 * most + EPS
    assert worker.order


def test_invalid_input_is_rejected():
    with pytest.raises(ValueError, match="wp is -1"):
        VtcOptions(wp=-1)
    with pytest.raises(ValueError, match="not both 0"):
        VtcOptions(wp=0, wq=0)
    with pytest.raises(ValueError, match="predict is 'best'"):
        VtcOptions(predict="best")
    with pytest.raises(ValueError, match="cost is 'tokens'"):
        VtcOptions(cost="tokens")
    with pytest.raises(ValueError, match="noise is 2"):
        VtcOracleOptions(noise=2)
    with pytest.raises(ValueError, match="predict is 'mean'"):
        VtcOracleOptions(predict="mean")
    with pytest.raises(ValueError, match="wq is inf"):
        LcfOptions(wq=float("inf"))
    with pytest.raises(ValueError, match="remembered_clients is 0"):
        LcfOptions(remembered_clients=0)
    scheduler = VtcOracle()
    with pytest.raises(ValueError, match="needs the true length"):
        scheduler.add(LocalCall("x", "c", 1, 1))
    for weight in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="weight is"):
            Vtc().add(LocalCall("x", "c", 1, 1, weight=weight))
    assert len(scheduler) == 0
