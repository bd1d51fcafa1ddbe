"""Test D2LPM: locality with credit, balance without, membership, and its bound with its limit."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call, prompt

from fairserve.scheduling.fairness.credit import Credit
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.workers import Workers, WorkerSet
from fairserve.scheduling.routers.d2lpm import D2lpm
from fairserve.scheduling.routers.d2lpm_options import D2lpmOptions
from fairserve.scheduling.routers.loads import Loads

WORKERS = ["w0", "w1", "w2"]


def router(quantum=1000.0, workers=WORKERS, **options):
    locality = Locality(seed=1)
    made = D2lpm(locality, D2lpmOptions(quantum=quantum, **options))
    for worker in workers:
        locality.add_worker(worker, 100_000)
        made.add_worker(worker)
    return made, locality


def place(made, locality, new, open_workers=WORKERS, charge_factor=1.0):
    locality.register(new)
    worker = made.select(new, open_workers)
    made.dispatched(new, worker, charge_factor)
    locality.placed(new, worker)
    return worker


def document(name, number, length=400):
    return prompt((sum(name.encode()), length), (5000 + number, 16))


def test_a_client_stays_with_its_prefix_while_in_credit():
    made, locality = router(quantum=1000.0)
    workers = [place(made, locality, make_call(f"c{n}", tokens=document("d", n))) for n in range(9)]
    assert len(set(workers[:3])) == 1, "1,000 units buy three prompts of 416"
    assert len(set(workers)) == 3, "then the next worker takes a share"


def test_with_an_infinite_quantum_a_client_stays_with_its_prefix():
    """A.5: with Q^w = inf locality is absolute, and all calls run on one worker."""
    made, locality = router(quantum=float("inf"))
    workers = {
        place(made, locality, make_call(f"c{n}", tokens=document("d", n))) for n in range(50)
    }
    assert len(workers) == 1


def test_without_a_match_the_least_loaded_worker_in_credit_is_chosen():
    made, locality = router(quantum=1e6)
    placed = [place(made, locality, make_call(f"c{n}")) for n in range(9)]
    assert sorted(placed) == sorted(WORKERS * 3)


def test_the_output_is_charged_when_the_call_ends():
    made, locality = router(quantum=1000.0)
    new = make_call("a", tokens=prompt((1, 100)))
    worker = place(made, locality, new, charge_factor=2.0)
    made.finished(new, worker, 2.0, output_tokens=30)
    for client in (("t",), ("t", "u")):
        assert made.deficit(client, worker) == 1000.0 - 2.0 * 100 - 2.0 * 2 * 30


def test_the_quantum_may_follow_the_mean_prompt():
    made, locality = router(quantum=None, quantum_prompts=3.0)
    place(made, locality, make_call("a", tokens=prompt((1, 100))), charge_factor=2.0)
    assert [made.deficit(("t", "u"), worker) for worker in WORKERS] == [400.0, 600.0, 600.0], (
        "the first prompt stands for the mean, at its own charge_factor"
    )
    for number in range(9):
        new = make_call(f"b{number}", user="v", tokens=prompt((2, 300)))
        place(made, locality, new, charge_factor=1.0)
    mean = (200 + 9 * 300) / 10
    assert max(made.deficit(("t", "v"), worker) for worker in WORKERS) <= 3 * mean


def test_only_open_workers_are_chosen_without_a_needless_refill():
    made, locality = router(quantum=1000.0)
    first = place(made, locality, make_call("a", tokens=document("d", 0)))
    others = [worker for worker in WORKERS if worker != first]
    for worker in others:  # in debt at this worker
        made.dispatched(make_call(f"debt-{worker}", tokens=prompt((1, 2000))), worker, 1.0)
    before = {worker: made.deficit(("t", "u"), worker) for worker in WORKERS}
    new = make_call("b", tokens=document("d", 1))
    locality.register(new)
    assert made.select(new, others) in others
    assert {worker: made.deficit(("t", "u"), worker) for worker in WORKERS} == before
    assert made.select(new, []) is None


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
        for worker in WORKERS:
            assert made.deficit(("t",), worker) <= 4 * 500.0
            assert all(made.deficit(("t", f"u{n}"), worker) <= 500.0 for n in range(4))


def test_workers_join_and_leave():
    made, locality = router(quantum=1000.0, workers=["w0", "w1"])
    for number in range(6):
        place(made, locality, make_call(f"c{number}", tokens=document("d", number)), ["w0", "w1"])
    made.remove_worker("w0")
    locality.remove_worker("w0")
    assert place(made, locality, make_call("x", tokens=document("d", 7)), ["w1"]) == "w1"
    made.add_worker("w2")
    locality.add_worker("w2", 1000)
    for client in (("t",), ("t", "u")):
        assert made.deficit(client, "w2") == made.deficit(client, "w1"), (
            "as at the best of the others"
        )
        assert made.deficit(client, "w0") == 0.0, "nothing kept of the lost one"
    made.finished(make_call("c0"), None, 1.0, 5)
    with pytest.raises(ValueError, match="'w2' is known already"):
        made.add_worker("w2")


def test_idle_clients_in_credit_are_evicted():
    made, locality = router(quantum=1e6)
    for number in range(5000):
        new = make_call(f"c{number}", user=f"u{number}")
        worker = place(made, locality, new)
        assert made.deficit(new.client, worker) == 1e6 - new.prompt_tokens
        made.finished(new, worker, 1.0, 1)
        locality.forget(new.call_id)
    assert len(made._credits) < 3000
    assert len(made._paths) < 3000
    assert not any(credit.outstanding for credit in made._credits.values())


def test_the_default_quantum_follows_the_mean_prompt():
    made, locality = router(quantum=None)
    first = make_call("a", tokens=prompt((1, 100)))
    worker = place(made, locality, first)
    assert made.deficit(("t", "u"), worker) == 20 * 100 - 100


def test_invalid_options_are_rejected():
    with pytest.raises(ValueError, match="quantum is 0; allowed: over 0"):
        D2lpmOptions(quantum=0)
    with pytest.raises(ValueError, match=r"quantum_prompts is 0\.0; allowed: over 0, finite"):
        D2lpmOptions(quantum_prompts=0.0)


# --- levels ---------------------------------------------------------------------------------------


def spent_tokens(users, level_quantum, rounds=400, quantum=2000.0):
    """Return the prompt tokens of each tenant at the one worker that both prefer."""
    made, locality = router(quantum=quantum, level_quantum=level_quantum)
    at_w0 = {"a": 0, "b": 0}
    for number in range(rounds):
        for tenant, count in users.items():
            user = f"u{number % count}"
            new = make_call(
                f"{tenant}{number}", tenant=tenant, user=user, tokens=document("shared", number)
            )
            if place(made, locality, new) == "w0":
                at_w0[tenant] += new.prompt_tokens
    return at_w0


def test_invented_users_gain_nothing_at_a_contended_worker():
    """Both tenants send equally much; one under fifty names: the tenant's own credit bounds it."""
    plain = spent_tokens({"a": 1, "b": 1}, "equal")
    assert plain["a"] > 0
    assert abs(plain["a"] - plain["b"]) <= 2 * (2000 + 416)
    invented = spent_tokens({"a": 1, "b": 50}, "equal")
    assert abs(invented["a"] - invented["b"]) <= 2 * (2000 + 416)


def worker_of_a_new_document(level_quantum, rivals):
    """Return the workers of a new document's calls by ten new users of a tenant with thirty others."""
    made, locality = router(quantum=2000.0, level_quantum=level_quantum)
    for number in range(rivals):  # long calls of another tenant
        place(made, locality, make_call(f"r{number}", tenant="other", user=f"u{number}"))
    for number in range(200):
        new = make_call(f"{number}", user=f"u{number % 30}", tokens=document("old", number))
        place(made, locality, new)
    return {
        place(made, locality, make_call(f"n{n}", user=f"v{n}", tokens=document("new", n)))
        for n in range(10)
    }


def test_users_of_one_tenant_keep_their_prefixes():
    assert len(worker_of_a_new_document("clients", rivals=0)) == 1
    assert len(worker_of_a_new_document("equal", rivals=0)) == 1, "nobody competes"
    assert len(worker_of_a_new_document("clients", rivals=1)) == 1
    assert len(worker_of_a_new_document("equal", rivals=1)) > 1, "why it is not the default"


def test_a_user_in_debt_spends_no_tenant_credit():
    """A refill of the user does not reach its tenant, nor the tenant's refill the other users."""
    made, locality = router(quantum=1000.0)
    for number in range(8):
        place(made, locality, make_call(f"c{number}", user="u", tokens=document("d", number)))
    before = {worker: made.deficit(("t",), worker) for worker in WORKERS}
    new = make_call("x", user="v", tokens=document("d", 99))
    locality.register(new)
    made.select(new, WORKERS)
    assert {worker: made.deficit(("t",), worker) for worker in WORKERS} == before
    assert {made.deficit(("t", "v"), worker) for worker in WORKERS} == {1000.0}


@given(st.integers(0, 2**32), st.sampled_from([100.0, 512.0, float("inf")]))
def test_credit_equals_plain_deficits(seed, quantum):
    """Compare with a table of one number per worker, refilled round by round, by changing quanta."""
    rng = random.Random(seed)
    quanta = [quantum, quantum / 2, quantum / 8]
    credit, plain = Credit(), dict.fromkeys(range(5), 0.0)
    for _ in range(60):
        action = rng.random()
        allowed = rng.sample(sorted(plain), rng.randint(1, len(plain)))
        mask = sum(1 << slot for slot in allowed)
        quantum = rng.choice(quanta)
        if action < 0.5:
            slot, cost = rng.choice(sorted(plain)), rng.choice([0, 7, 100, 333, 5000])
            credit.charge(slot, cost)
            plain[slot] -= cost
        elif action < 0.8:
            if not credit.within(mask):
                credit.refill(quantum, mask)
                while all(plain[slot] <= 0 for slot in allowed):
                    plain = {slot: q + quantum if q <= 0 else q for slot, q in plain.items()}
        elif action < 0.9 and len(plain) > 1:
            slot = rng.choice(sorted(plain))
            credit.leave(slot)
            del plain[slot]
        else:
            slot = next(n for n in range(100) if n not in plain)
            credit.join(slot, sum(1 << each for each in plain))
            plain[slot] = max(plain.values())
        assert {slot: credit.value(slot) for slot in plain} == pytest.approx(plain)
        everywhere = sum(1 << slot for slot in plain)
        expected = sum(1 << slot for slot, q in plain.items() if q > 0)
        assert credit.within(everywhere) == expected
        assert credit.harmless == (expected == everywhere and credit._elsewhere > 0)
        copy = Credit.restored(json.loads(json.dumps(credit.snapshot())))
        assert copy.snapshot() == credit.snapshot()
        assert copy.within(everywhere) == expected


@given(st.integers(0, 2**32))
def test_loads_equal_plain_counts(seed):
    rng = random.Random(seed)
    workers = Workers()
    loads, plain = Loads(workers), {}
    for number in range(80):
        action = rng.random()
        if action < 0.1 or not plain:
            loads.add_worker(f"w{number}")
            plain[f"w{number}"] = 0
        elif action < 0.15:
            gone = rng.choice(sorted(plain))
            loads.remove_worker(gone)
            workers.forget(gone)
            del plain[gone]
        else:
            name = rng.choice(sorted(plain))
            if action < 0.7 or not plain[name]:
                loads.dispatched(name)
                plain[name] += 1
            else:
                loads.finished(name)
                plain[name] -= 1
        some = rng.sample(sorted(plain), rng.randint(0, len(plain)))
        found = loads.least(workers.mask(some))
        expected = min(some, key=lambda name: (plain[name], workers.slot(name)), default=None)
        assert found == expected
        assert loads.calls == plain
        if plain:
            assert loads.extremes() == (min(plain.values()), max(plain.values()))
        names = WorkerSet(workers, workers.mask(some))
        assert sorted(names) == sorted(some)
        assert len(names) == len(some)
        assert [name for name in plain if name in names] == [n for n in plain if n in some]
        copy = Loads(workers)
        copy.restore(json.loads(json.dumps(loads.snapshot())))
        assert copy.least(workers.mask(some)) == expected


@pytest.mark.parametrize("levels", [("alice",), ("t", "alice")])
def test_a_debt_at_an_open_worker_is_limited_while_the_others_are_closed(levels):
    """1,000 calls at w0, with credit at w1, which is full: the client owes a quantum and one call."""
    made, locality = router(quantum=1000.0, workers=["w0", "w1"])
    for number in range(1000):
        call = make_call(f"c{number}", tokens=document("d", number))
        call.client = levels
        assert place(made, locality, call, ["w0"]) == "w0"
        for depth in range(len(levels)):
            assert made.deficit(levels[: depth + 1], "w0") >= -1000.0 - 416
    assert made.deficit(levels, "w1") > 0
    made.finished(call, "w0", 1.0, 50)
    assert made.deficit(levels, "w0") >= -1000.0 - 416 - 2 * 50
