"""VTC's theorems on one worker, on random backlogs and adversarial arrivals, outputs reserved.

``U = max(wp * longest prompt, wq * capacity)`` throughout; every quantity is checked after every
event that may change it, not only between steps.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import OneWorker

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.local.lcf import Lcf, LcfOptions, UnliftedCounters
from fairserve.scheduling.local.length_prediction import MeanOfLast, Oracle
from fairserve.scheduling.local.vtc import Vtc, VtcOptions

EPS = 1e-6


class Watch:
    """Measures what the theorems bound, at every event of one worker."""

    def __init__(self, worker):
        self.worker = worker
        worker.observe = self.event
        self.spread = 0.0
        """Largest difference of the counters of queued clients (Lemma 4.3)."""
        self.backlogged_difference = 0.0
        """Largest |Wf - Wg| over an interval in which both are backlogged (Theorem 4.4)."""
        self.lag = 0.0
        """Largest Wg - Wf over an interval in which f is backlogged (Theorem 4.9)."""
        self.shortfall = 0.0
        """Largest T / n - Wf since f became backlogged (Theorem 4.13)."""
        self.outstanding = 0.0
        """The most that any client had reserved for predictions at one time."""
        self._both, self._one = {}, {}
        self._at_start = {}

    def event(self):
        service, queued = self.worker.service, self.worker.backlogged()
        scheduler = self.worker.scheduler
        counters = [scheduler.counter((client,)) for client in queued]
        reserved = [scheduler._counters.outstanding((client,)) for client in service]
        self.outstanding = max(self.outstanding, *reserved)
        if counters:
            self.spread = max(self.spread, max(counters) - min(counters))
        self._at_start = {f: at for f, at in self._at_start.items() if f in queued}
        self._both = {
            pair: low_high for pair, low_high in self._both.items() if set(pair) <= queued
        }
        self._one = {pair: low for pair, low in self._one.items() if pair[0] in queued}
        for f in queued:
            start = self._at_start.setdefault(f, (dict(service), {f}))
            start[1].update(queued, self.worker_clients())
            total = sum(service.values()) - sum(start[0].values())
            own = service[f] - start[0][f]
            self.shortfall = max(self.shortfall, total / len(start[1]) - own)
            for g in service:
                difference = service[g] - service[f]
                low = self._one[f, g] = min(self._one.get((f, g), difference), difference)
                self.lag = max(self.lag, difference - low)
                if g in queued:
                    low, high = self._both.get((f, g), (difference, difference))
                    self._both[f, g] = min(low, difference), max(high, difference)
                    low, high = self._both[f, g]
                    self.backlogged_difference = max(self.backlogged_difference, high - low)

    def worker_clients(self):
        return {call.client_id for call in self.worker.running.values()}


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "clients": st.integers(2, 5),
        "wq": st.sampled_from([1.0, 2.0, 4.0]),
        "longest_prompt": st.sampled_from([5, 100, 500]),
        "longest_output": st.sampled_from([2, 20, 100]),
        "capacity": st.sampled_from([600, 1500]),
    }
)


def adversarial(case, scheduler, *, steps=120, reserve=True, max_batch=10**9):
    """Bursts, clients that come and go, lengths at both extremes."""
    rng = random.Random(case["seed"])
    worker = OneWorker(
        scheduler, case["capacity"], wq=case["wq"], reserve=reserve, max_batch=max_batch
    )
    watch = Watch(worker)
    for _ in range(steps):
        for client in range(case["clients"]):
            if rng.random() < (0.5 if client == 0 else 0.1):
                for _ in range(rng.choice([1, 1, 8])):
                    prompt = rng.choice(
                        [1, case["longest_prompt"], rng.randint(1, case["longest_prompt"])]
                    )
                    longest = rng.choice([1, case["longest_output"]])
                    worker.add(f"k{client}", prompt, rng.randint(1, longest), longest=longest)
        worker.step()
    return worker, watch


def bound(case):
    return max(case["longest_prompt"], case["wq"] * case["capacity"])


@settings(max_examples=60, deadline=None)
@given(cases)
def test_the_theorems_hold_on_adversarial_arrivals(case):
    """Lemma 4.3, Theorems 4.4, 4.9 and 4.13 (its proof: Wf >= T/n - 4U since f is backlogged)."""
    _, watch = adversarial(case, Vtc(VtcOptions(wq=case["wq"])))
    most = bound(case)
    assert watch.spread <= most + EPS
    assert watch.backlogged_difference <= 2 * most + EPS
    assert watch.lag <= 4 * most + EPS
    assert watch.shortfall <= 4 * most + EPS


@pytest.mark.parametrize("seed", range(3))
def test_the_theorems_hold_in_a_long_run(seed):
    case = {
        "seed": seed,
        "clients": 6,
        "wq": 2.0,
        "longest_prompt": 200,
        "longest_output": 60,
        "capacity": 800,
    }
    worker, watch = adversarial(case, Vtc(), steps=1200)
    assert len(worker.order) > 300
    assert watch.spread <= bound(case)
    assert watch.backlogged_difference <= 2 * bound(case)
    assert watch.lag <= 4 * bound(case)


def on_off(scheduler):
    """One client floods all the time, another comes after a long absence and floods, too."""
    worker = OneWorker(scheduler, 400)
    watch = Watch(worker)
    for _ in range(600):
        worker.add("steady", 20, 20)
    for _ in range(300):
        worker.step()
    for _ in range(600):
        worker.add("returned", 20, 20)
    for _ in range(300):
        worker.step()
    return watch, 2 * 400


def test_without_the_lift_a_returning_client_displaces_the_others():
    """LCF breaks Lemma 4.3, Theorem 4.4 and Theorem 4.9 where VTC holds them with room to spare."""
    watch, most = on_off(Vtc())
    assert watch.spread <= most
    assert watch.backlogged_difference <= 2 * most
    watch, most = on_off(Lcf())
    assert watch.spread > 5 * most
    assert watch.backlogged_difference > 5 * most
    assert watch.lag > 5 * most


@pytest.mark.parametrize("scheduler", [Vtc, Lcf, Fcfs])
def test_no_work_conserving_scheduler_is_fairer_than_wq_times_the_batch(scheduler):
    """Theorem 4.8: f fills the batch, g comes a moment later; both are backlogged until f's end."""
    capacity = 500
    worker = OneWorker(scheduler(), capacity)
    for _ in range(2):
        worker.add("f", 1, capacity - 1)
    worker.admit()
    worker.add("g", 1, capacity - 1)
    before = dict(worker.service)
    for _ in range(capacity - 1):
        worker.admit()
        assert worker.backlogged() == {"f", "g"}
        worker.decode()
    f, g = (worker.service[client] - before[client] for client in "fg")
    assert f - g == 2.0 * (capacity - 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_a_client_that_was_not_there_is_dispatched_within_the_latency_bound(seed, clients):
    """Theorem 4.11: at most 2 (n - 1) U of service goes to others first, hence 2 (n - 1) U / a."""
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


def test_a_client_below_its_share_is_served_in_full_whatever_the_others_send():
    """Theorem 4.13: a tenth of what an equal share would be; the other three flood."""
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


# --- prediction (Algorithm 3) ---------------------------------------------------------------------


def windowed_difference(predict, clients, prompts, outputs, capacity, *, steps=600, window=60):
    """Mean over time of max - min of the clients' service rates (tokens per step), all backlogged."""
    rng = random.Random(2)
    worker = OneWorker(Vtc(VtcOptions(predict=predict)), capacity)
    history, differences = [], []
    for step in range(steps):
        for client in range(clients):
            for _ in range(30 if step == 0 else 1):
                worker.add(f"k{client}", rng.randint(*prompts), rng.randint(*outputs), longest=120)
        worker.step()
        assert len(worker.backlogged()) == clients
        history.append(dict(worker.service))
        if step >= window:
            rates = [history[-1][c] - history[-1 - window][c] for c in history[-1]]
            differences.append((max(rates) - min(rates)) / window)
    return sum(differences) / len(differences)


@pytest.mark.parametrize(
    ("clients", "prompts", "outputs", "capacity"),
    [(8, (64, 64), (64, 64), 4000), (4, (2, 6), (10, 120), 2000), (2, (20, 60), (100, 120), 5000)],
)
def test_the_better_the_prediction_the_closer_the_service(clients, prompts, outputs, capacity):
    """Tables 5 and 6: plain VTC over 8 clients 104 on average, +-50 % 12.5, oracle 0.5 tokens/s.

    The counters chase each other in both; without prediction a whole batch goes to the client that
    is behind, since its outputs are not charged before they are generated.
    """
    plain, noisy, oracle = (
        windowed_difference(predict, clients, prompts, outputs, capacity)
        for predict in (None, "noisy", "oracle")
    )
    assert oracle < 0.5 * plain
    assert oracle <= noisy < plain


def test_equal_outputs_make_the_mean_of_five_an_oracle():
    """Two backlogged clients of 256/256 tokens (Table 4): prediction takes turns exactly."""
    largest = {}
    for predict in (None, "mean", "oracle"):
        worker = OneWorker(Vtc(VtcOptions(predict=predict)), 5120)
        for _ in range(150):
            worker.add("f", 256, 256)
            worker.add("g", 256, 256)
        worst = 0.0
        for step in range(2500):
            worker.step()
            if step > 600:
                worst = max(worst, abs(worker.service["f"] - worker.service["g"]))
        assert worker.backlogged() == {"f", "g"}
        largest[predict] = worst
    assert largest["oracle"] <= 256 + 2 * 256, "one call"
    assert largest["mean"] <= 256 + 2 * 256
    assert largest["oracle"] <= largest[None]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([None, "mean", "oracle", "noisy"]),
    st.sampled_from(["linear", "extend", "profiled"]),
    st.booleans(),
)
def test_the_counter_is_the_service_once_everything_has_ended(seed, predict, cost, preempt):
    """Predictions that came true are charged once, the others given back, whatever was preempted.

    With counters that are never lifted, so that nothing but charges moves them. While calls run, a
    counter is what was generated plus what is predicted of the running calls and not yet generated.
    """
    rng = random.Random(seed)
    options = VtcOptions(predict=predict, cost=cost, noise=1.0)
    scheduler = Vtc(options, counters=UnliftedCounters(100))
    worker = OneWorker(scheduler, 700, reserve=False)
    calls = {}
    for _ in range(10):
        for client in range(3):
            call_id = worker.add(
                f"k{client}",
                rng.randint(1, 200),
                rng.randint(1, 80),
                weight=rng.choice([0.3, 1.0, 7.0]),
                matched=rng.randrange(99),
            )
            calls[call_id] = worker.waiting[call_id]
    service = {
        "linear": lambda p, o, c: p + 2 * o,
        "extend": lambda p, o, c: p - c + 2 * o,
        "profiled": lambda p, o, c: 2.1 * p + o + 0.04 * p * o + 0.032 * o**2 + 11.46,
    }[cost]

    def predicted(call_id):
        account = scheduler._entries[call_id].account
        return 0.0 if account is None else account.predicted

    def check():
        expected = dict.fromkeys(worker.service, 0.0)
        for call_id, output in worker.decoded.items():
            call, cached = calls[call_id], worker.cache.matched_tokens(calls[call_id])
            charged = service(call.prompt_tokens, output, cached)
            if call_id in worker.running:
                charged = max(charged, predicted(call_id))
            expected[call.client_id] += charged / call.weight
        for client, value in expected.items():
            assert scheduler.counter((client,)) == pytest.approx(value)

    while worker.waiting or worker.running:
        worker.step()
        check()
        if preempt and worker.running and rng.random() < 0.3:
            worker.preempt(rng.choice(list(worker.running)))
            check()
        if worker.running and rng.random() < 0.05:
            worker.finish(rng.choice(list(worker.running)))  # cancelled while it runs
            check()
    assert not scheduler._entries
    assert not any(scheduler._counters.outstanding((client,)) for client in worker.service)


@pytest.mark.parametrize("predicted", [4, 10, 25])
def test_what_is_charged_when(predicted):
    """Ten tokens step by step: lines 25-26 at selection, 35-36 past the prediction, 37-38 at the end."""
    scheduler = Vtc(VtcOptions(predict="oracle"))
    worker = OneWorker(scheduler, 1000)
    worker.add("other", 1, 1)
    worker.admit()
    call_id = worker.add("c", 100, 10)
    worker.waiting[call_id].output_tokens = predicted
    worker.admit()
    worker.running[call_id].output_tokens = 10
    assert scheduler.counter(("c",)) == 1 + 2 + 100 + 2 * predicted - 2 * 1
    for generated in range(1, 10):
        worker.decode()
        assert scheduler.counter(("c",)) == 1 + 100 + 2 * max(predicted, generated)
    worker.decode()
    assert worker.ended[-1] == call_id
    assert scheduler.counter(("c",)) == 1 + 100 + 2 * 10


def test_a_newcomer_is_not_lifted_to_what_is_given_back():
    worker = OneWorker(Vtc(VtcOptions(predict="oracle")), 1000)
    long = worker.add("busy", 10, 100)
    worker.waiting[long].output_tokens = 400
    worker.add("busy", 10, 900)
    worker.admit()
    assert worker.scheduler.counter(("busy",)) == 10 + 2 * 400
    worker.add("new", 10, 10)
    assert worker.scheduler.counter(("new",)) == 10


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from(["mean", "oracle", "noisy"]))
def test_with_prediction_the_bound_grows_by_the_outstanding_predictions(case, predict):
    scheduler = Vtc(VtcOptions(wq=case["wq"], predict=predict))
    worker, watch = adversarial(case, scheduler)
    most = bound(case) + 2 * watch.outstanding
    assert watch.outstanding or predict == "mean"
    assert watch.spread <= most + EPS
    assert watch.backlogged_difference <= 2 * most + EPS
    assert worker.order


@settings(max_examples=40, deadline=None)
@given(cases)
def test_with_preemption_the_longest_outputs_of_the_batch_take_the_place_of_its_size(case):
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


def test_mean_of_the_last_five():
    predictor = MeanOfLast()
    call = LocalCall("x", "c", 1, 1)
    assert predictor.predict(call) == 0
    for output_tokens in (1000, 10, 0, 20, 30, 40, 50):
        predictor.ended("c", output_tokens)
    assert predictor.predict(call) == 30, "the last five that generated anything"
    assert predictor.predict(LocalCall("y", "other", 1, 1)) == 0


def test_the_error_of_the_noisy_oracle_depends_on_the_seed_and_the_call_alone():
    calls = [LocalCall(f"x{number}", "c", 1, 1, output_tokens=1000) for number in range(300)]
    first = [Oracle(noise=0.5, seed=1).predict(call) for call in calls]
    again = Oracle(noise=0.5, seed=1)
    assert [again.predict(call) for call in reversed(calls)] == first[::-1]
    assert [Oracle(noise=0.5, seed=2).predict(call) for call in calls] != first
    assert 500 <= min(first) < 520
    assert 1480 < max(first) <= 1500
    assert sum(first) / 300 == pytest.approx(1000, rel=0.05)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="wp is -1"):
        VtcOptions(wp=-1)
    with pytest.raises(ValueError, match="not both 0"):
        VtcOptions(wp=0, wq=0)
    with pytest.raises(ValueError, match="predict is 'best'"):
        VtcOptions(predict="best")
    with pytest.raises(ValueError, match="cost is 'tokens'"):
        VtcOptions(cost="tokens")
    with pytest.raises(ValueError, match="noise is 2"):
        VtcOptions(noise=2)
    with pytest.raises(ValueError, match="wq is inf"):
        LcfOptions(wq=float("inf"))
    with pytest.raises(ValueError, match="remembered_clients is 0"):
        LcfOptions(remembered_clients=0)
    scheduler = Vtc(VtcOptions(predict="oracle"))
    with pytest.raises(ValueError, match="needs the true length"):
        scheduler.add(LocalCall("x", "c", 1, 1))
    for weight in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="weight is"):
            Vtc().add(LocalCall("x", "c", 1, 1, weight=weight))
    assert len(scheduler) == 0
