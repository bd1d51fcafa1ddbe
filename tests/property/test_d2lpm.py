"""D2LPM: locality while in credit, balance when not, membership, and its bound with its limit."""

import json
import random

import pytest
from virtual_cluster import make_call, prompt

from fairserve.scheduling.locality import Locality
from fairserve.scheduling.routers.d2lpm import D2lpm, D2lpmOptions

WORKERS = ["w0", "w1", "w2"]


def router(quantum=1000.0, workers=WORKERS):
    locality = Locality(seed=1)
    made = D2lpm(locality, D2lpmOptions(quantum=quantum))
    for worker in workers:
        locality.add_worker(worker, 100_000)
        made.add_worker(worker)
    return made, locality


def place(made, locality, new, open_workers=WORKERS, price=1.0):
    locality.register(new)
    worker = made.select(new, open_workers)
    made.dispatched(new, worker, price)
    locality.placed(new, worker)
    return worker


def document(name, number, length=400):
    return prompt((sum(name.encode()), length), (5000 + number, 16))


def test_a_client_follows_its_prefix_until_its_credit_there_is_spent():
    made, locality = router(quantum=1000.0)
    workers = [place(made, locality, make_call(f"c{n}", tokens=document("d", n))) for n in range(9)]
    assert len(set(workers[:3])) == 1, "1,000 units buy three prompts of 416"
    assert len(set(workers)) == 3, "then the next worker takes a share"


def test_an_infinite_quantum_never_leaves_the_prefix():
    """A.5: Q^w = inf is pure locality, and piles everything on one worker."""
    made, locality = router(quantum=float("inf"))
    workers = {
        place(made, locality, make_call(f"c{n}", tokens=document("d", n))) for n in range(50)
    }
    assert len(workers) == 1


def test_without_a_match_the_least_loaded_worker_in_credit():
    made, locality = router(quantum=1e6)
    placed = [place(made, locality, make_call(f"c{n}")) for n in range(9)]
    assert sorted(placed) == sorted(WORKERS * 3)


def test_only_open_workers_and_no_refill_for_credit_elsewhere():
    made, locality = router(quantum=1000.0)
    first = place(made, locality, make_call("a", tokens=document("d", 0)))
    others = [worker for worker in WORKERS if worker != first]
    for worker in others:  # in debt there
        made.dispatched(make_call(f"debt-{worker}", tokens=prompt((1, 2000))), worker, 1.0)
    before = {worker: made.deficit("t/u", worker) for worker in WORKERS}
    new = make_call("b", tokens=document("d", 1))
    locality.register(new)
    assert made.select(new, others) in others
    assert {worker: made.deficit("t/u", worker) for worker in WORKERS} == before
    assert made.select(new, []) is None


def test_work_is_spread_by_price():
    made, locality = router(quantum=1000.0)
    for number in range(30):
        user = "cheap" if number % 2 else "dear"
        price = 0.5 if user == "cheap" else 2.0
        new = make_call(f"c{number}", user=user, tokens=document(user, number))
        worker = place(made, locality, new, price=price)
        made.finished(new, worker, price, 10)
    spread = {
        user: [made.deficit(f"t/{user}", worker) for worker in WORKERS]
        for user in ("cheap", "dear")
    }
    assert all(deficit <= 1000 for deficits in spread.values() for deficit in deficits)


@pytest.mark.parametrize("seed", range(5))
def test_deficits_stay_between_one_call_and_one_quantum(seed):
    """After every selection each deficit is in (-U, Q]; U one prompt and one output."""
    rng = random.Random(seed)
    made, locality = router(quantum=500.0)
    running = []
    for number in range(400):
        user = f"u{rng.randrange(4)}"
        length = 16 * rng.randint(1, 40)
        new = make_call(f"c{number}", user=user, tokens=prompt((rng.randrange(6), length)))
        running.append((new, place(made, locality, new)))
        if rng.random() < 0.9:
            done, worker = running.pop(rng.randrange(len(running)))
            made.finished(done, worker, 1.0, rng.randint(0, 50))
            locality.forget(done.call_id)
        for at in made._deficits.values():
            assert max(at.values()) <= 500.0


def test_membership():
    made, locality = router(quantum=1000.0, workers=["w0", "w1"])
    for number in range(6):
        place(made, locality, make_call(f"c{number}", tokens=document("d", number)), ["w0", "w1"])
    made.remove_worker("w0")
    locality.remove_worker("w0")
    assert place(made, locality, make_call("x", tokens=document("d", 7)), ["w1"]) == "w1"
    made.add_worker("w2")
    locality.add_worker("w2", 1000)
    assert made.deficit("t/u", "w2") <= 1000.0
    assert made.deficit("t/u", "w0") == made.deficit("t/u", "w2"), "nothing kept of the lost one"
    made.finished(make_call("c0"), None, 1.0, 5)
    with pytest.raises(ValueError, match="'w2' is known already"):
        made.add_worker("w2")


def test_idle_clients_in_credit_are_forgotten():
    made, locality = router(quantum=1e6)
    for number in range(5000):
        new = make_call(f"c{number}", user=f"u{number}")
        worker = place(made, locality, new)
        made.finished(new, worker, 1.0, 1)
        locality.forget(new.call_id)
    assert len(made._deficits) < 3000
    assert not made._outstanding


def test_the_default_quantum_follows_the_mean_prompt():
    made, locality = router(quantum=None)
    first = make_call("a", tokens=prompt((1, 100)))
    worker = place(made, locality, first)
    assert made.deficit("t/u", worker) == 20 * 100 - 100


def test_snapshot_restores():
    made, locality = router()
    for number in range(10):
        place(made, locality, make_call(f"c{number}", user=f"u{number % 3}"))
    other, _ = router(workers=[])
    other.restore(json.loads(json.dumps(made.snapshot())))
    assert other.snapshot() == made.snapshot()


def test_bad_options():
    with pytest.raises(ValueError, match="quantum is 0; allowed: over 0"):
        D2lpmOptions(quantum=0)
