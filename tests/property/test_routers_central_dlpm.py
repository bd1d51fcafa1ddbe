"""Centralised DLPM equals Algorithm 1 written out; its bounds, state, and a whole cluster under it."""

import random

import pytest
from virtual_cluster import make_call, prompt

from fairserve.benchmarks.policies.central_dlpm import CentralDlpm, CentralDlpmOptions
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.deficits import Deficits
from fairserve.scheduling.locality.locality import Locality

WORKERS = ["w0", "w1", "w2"]


class PlainDlpm:
    """Algorithm 1 as printed, over one queue, one call at a time."""

    def __init__(self, quantum, matched):
        self.quantum, self.matched = quantum, matched
        self.q, self.queue, self.running = {}, [], {}

    def add(self, number, call):
        self.q.setdefault(call.user, 0.0)
        self.queue.append((number, call))
        self.queue.sort(key=lambda entry: entry[0])

    def check_refill(self):
        waiting = {call.user for _, call in self.queue}
        while not any(self.q[user] > 0 for user in waiting):
            for user, q in self.q.items():
                if q <= 0:
                    self.q[user] += self.quantum

    def take(self, open_workers):
        self.check_refill()
        order = sorted(
            self.queue, key=lambda entry: (-self.matched(entry[1], open_workers), entry[0])
        )
        number, call = next(entry for entry in order if self.q[entry[1].user] > 0)
        self.queue.remove((number, call))
        self.running[call.call_id] = (number, call)
        return call

    def over(self, user):
        """Evict an idle client in credit (ALGORITHMS section 5)."""
        busy = {call.user for _, call in [*self.queue, *self.running.values()]}
        if user not in busy and self.q[user] > 0:
            del self.q[user]


class Both:
    """The feeder and the plain one with the same events."""

    def __init__(self, quantum):
        self.locality = Locality(seed=2)
        for worker in WORKERS:
            self.locality.add_worker(worker, 2000)
        options = CentralDlpmOptions(quantum=quantum)
        self.feeder = CentralDlpm(Directory(), self.locality, options)
        self.plain = PlainDlpm(quantum, self.matched_blocks)
        self.usage, self.paid = {}, {}

    def matched_blocks(self, call, workers):
        """Round up: of a fully cached prompt, the last token is computed nevertheless."""
        return -(-self.locality.matched_tokens(call, workers) // self.locality.block_tokens)

    def add(self, number, call):
        self.locality.register(call)
        self.feeder.add(call)
        self.plain.add(number, call)

    def take(self, open_workers):
        expected = self.plain.take(open_workers)
        before = self.feeder.snapshot()
        assert self.feeder.peek(open_workers).call_id == expected.call_id
        assert self.feeder.snapshot() == before, "peek changes nothing"
        workers = self.locality.workers
        cached, having = self.locality.match(expected, workers.mask(open_workers))
        assert self.feeder.dispatch(expected.call_id, cached) == 1.0
        paid = self.paid.setdefault(expected.call_id, [0, 0])
        extend = max(0, expected.prompt_tokens - cached - paid[0])
        paid[0] += extend
        self.plain.q[expected.user] -= extend
        self.usage[expected.call_id] = TokenUsage(expected.prompt_tokens, 0, cached, 0)
        self.locality.placed(expected, workers.first(having))

    def decode(self, call_id, tokens):
        used = self.usage[call_id]
        total = used.output_tokens + tokens
        self.usage[call_id] = TokenUsage(used.input_tokens, 0, used.cached_tokens, total)
        self.feeder.charge(call_id, self.usage[call_id])
        paid = self.paid[call_id]
        more = max(0, total - paid[1])
        paid[1] += more
        self.plain.q[self.plain.running[call_id][1].user] -= 2 * more

    def finish(self, call_id):
        _, call = self.plain.running.pop(call_id)
        self.feeder.finish(call_id, self.usage.pop(call_id))
        self.plain.over(call.user)

    def requeue(self, call_id):
        number, call = self.plain.running.pop(call_id)
        self.usage.pop(call_id)
        self.feeder.requeue(call)
        self.plain.add(number, call)

    def cancel(self, call_id):
        [(number, call)] = [entry for entry in self.plain.queue if entry[1].call_id == call_id]
        assert self.feeder.remove(call_id) is call
        self.plain.queue.remove((number, call))
        self.plain.over(call.user)

    def same_deficits(self):
        assert {user: self.feeder.deficit(f"t/{user}") for user in self.plain.q} == self.plain.q
        assert len(self.feeder) == len(self.plain.queue) == len(list(self.feeder.waiting()))


@pytest.mark.parametrize("quantum", [40.0, 300.0, 5000.0])
def test_the_order_equals_algorithm_1(seed, quantum):
    rng = random.Random(seed)
    both = Both(quantum)
    for number in range(400):
        kind = rng.random()
        if kind < 0.4:
            tokens = prompt(
                (rng.randrange(5), 16 * rng.randrange(10)), (number, rng.randint(1, 70))
            )
            both.add(number, make_call(f"{number:04d}", user=f"u{rng.randrange(5)}", tokens=tokens))
        elif kind < 0.7:
            if both.plain.queue:
                both.take([worker for worker in WORKERS if rng.random() < 0.7] or ["w1"])
        elif kind < 0.73 and both.plain.queue:
            both.cancel(rng.choice(both.plain.queue)[1].call_id)
        elif both.plain.running:
            call_id = rng.choice(list(both.plain.running))
            if kind < 0.88:
                both.decode(call_id, rng.randrange(30))
            elif kind < 0.97:
                both.finish(call_id)
            elif both.usage[call_id].output_tokens == 0:
                both.requeue(call_id)
        both.same_deficits()


def feeder_with(quantum=100.0, **weights):
    directory, locality = Directory(), Locality(seed=2)
    for user, weight in weights.items():
        directory.take(ev.UserChanged("t", user, weight))
    locality.add_worker("w0", 10_000)
    return CentralDlpm(directory, locality, CentralDlpmOptions(quantum=quantum)), locality


def test_a_weight_divides_the_charges():
    feeder, _ = feeder_with(quantum=100.0, heavy=3.0)
    served = {"heavy": 0, "light": 0}
    for number in range(400):
        feeder.add(make_call(f"{number:04d}", user=["heavy", "light"][number % 2]))
    for _ in range(200):
        call = feeder.peek(["w0"])
        charge_factor = feeder.dispatch(call.call_id, 0)
        assert charge_factor == pytest.approx(1 / 3 if call.user == "heavy" else 1.0)
        feeder.finish(call.call_id, TokenUsage(32, 0, 0, 8))
        served[call.user] += 1
    assert served["heavy"] == pytest.approx(3 * served["light"], abs=12)


def test_a_requeued_call_is_not_charged_again():
    feeder, _ = feeder_with(quantum=1000.0)
    call = make_call("a", tokens=prompt((1, 320)))
    feeder.add(call)
    feeder.dispatch("a", 200)
    assert feeder.deficit("t/u") == 1000 - 120
    feeder.charge("a", TokenUsage(320, 0, 200, 5))
    assert feeder.deficit("t/u") == 1000 - 120 - 10
    feeder.requeue(call)
    feeder.dispatch("a", 0)
    assert feeder.deficit("t/u") == 1000 - 320 - 10, "elsewhere 200 more had to be computed"
    feeder.finish("a", TokenUsage(320, 0, 0, 7))
    assert feeder.deficit("t/u") == 0, "idle and in credit: forgotten"


def test_idle_clients_are_evicted():
    feeder, _ = feeder_with(quantum=50.0)
    for number in range(6000):
        feeder.add(make_call(f"c{number}", user=f"u{number}", tokens=prompt((1, 60 + number % 9))))
        feeder.dispatch(f"c{number}", 0)
        feeder.finish(f"c{number}", TokenUsage(60 + number % 9, 0, 0, 30))
    assert len(feeder._deficits) < 3 * 1024
    assert not any(client.busy for client in feeder._deficits._clients.values())


def test_counted_refills_equal_made_refills():
    rng = random.Random(1)
    lazy, eager = Deficits(7.0), {}
    for _ in range(2000):
        name = f"c{rng.randrange(6)}"
        client = lazy.known((name,))
        if rng.random() < 0.6:
            cost = float(rng.randrange(30))
            lazy.charge(client, cost)
            eager[name] = eager.get(name, 0.0) - cost
        else:
            eager.setdefault(name, 0.0)
            to = lazy.root.rounds + rng.randrange(4)
            ahead = {client: lazy.known((client,)).in_round(to, 7.0) for client in eager}
            in_credit = {client: lazy.known((client,)).ready(7.0) <= to for client in eager}
            rounds = to - lazy.root.rounds
            lazy.refill_to(lazy.root, to)
            for _ in range(rounds):
                eager = {client: q + 7.0 if q <= 0 else q for client, q in eager.items()}
            assert ahead == eager
            assert in_credit == {client: q > 0 for client, q in eager.items()}
        assert {client: lazy.value((client,)) for client in eager} == eager


def test_invalid_input_is_rejected():
    feeder, _ = feeder_with()
    feeder.add(make_call("a"))
    with pytest.raises(ValueError, match="'a' is queued already"):
        feeder.add(make_call("a"))
    for rejected in (
        lambda: feeder.dispatch("b", 0),
        lambda: feeder.charge("b", TokenUsage()),
        lambda: feeder.finish("b", TokenUsage()),
        lambda: feeder.requeue(make_call("b")),
    ):
        with pytest.raises(KeyError):
            rejected()
    assert feeder.remove("b") is None
    with pytest.raises(ValueError, match="quantum is 0; allowed: over 0, finite"):
        CentralDlpmOptions(quantum=0)
    with pytest.raises(ValueError, match=r"we is -1, wq is 2\.0; allowed: not negative"):
        CentralDlpmOptions(we=-1)
