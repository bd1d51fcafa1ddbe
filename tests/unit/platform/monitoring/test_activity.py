"""Test the activity counts: buckets, their bounds, tenants, and Jain's index."""

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring import activity_bucket
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS, Activity
from fairserve.platform.monitoring.activity_bucket import Counts


class Clock:
    """Activity with a manual clock, and its calls."""

    def __init__(self, **weights):
        self.now_s = 1000.0
        self.weights = weights
        self.activity = Activity(
            lambda owners: {owner: self.weights.get(owner[2], 1.0) for owner in owners},
            lambda: self.now_s,
            lambda call: 4.0 if call.priority else 1.0,
        )
        self.calls = 0

    def call(self, user="u", tenant="t"):
        self.calls += 1
        priority = user == "priority"
        call = make_call(f"c{self.calls}", user=user, tenant=tenant, priority=priority)
        return CallState(call, "row", "", self.now_s, self.now_s)

    def accept(self, user="u", tenant="t"):
        live = self.call(user, tenant)
        self.activity.call_accepted(live, self.now_s)
        return live

    def use(self, live, prompt=0, output=0, cached=0):
        live.usage = TokenUsage(prompt, 0, cached, output)
        self.activity.call_progressed(live, self.now_s)

    def serve(self, user="u", tokens=10, tenant="t", worker="w0", cached=0, outcome="completed"):
        """Run a whole call from admission to outcome."""
        live = self.accept(user, tenant)
        self.activity.call_granted(live)
        live.worker_id, live.queue_s = worker, 0.5
        live.usage = TokenUsage(tokens, 0, cached, 0)
        self.activity.call_ended(live, outcome, self.now_s)

    def refuse(self, user="u", tenant="t", reason="rpm_user_limit"):
        self.activity.call_rejected(self.call(user, tenant), reason, self.now_s)

    def next_bucket(self, buckets=1):
        self.now_s = (self.now_s // BUCKET_S + buckets) * BUCKET_S
        self.activity.settle(self.now_s)

    @property
    def last(self):
        return self.activity.buckets()[self.activity.number - 1]


def owner(user="u", tenant="t"):
    return (tenant, "app", user)


def test_a_priority_call_counts_as_it_is_charged():
    clock = Clock()
    live = clock.accept("priority")
    clock.activity.call_granted(live)
    clock.use(live, prompt=100)
    clock.use(live, prompt=100, output=50)
    clock.serve("u", tokens=200)
    clock.next_bucket()
    services = clock.activity.demand()[live.call.pool].services
    assert services == {owner("priority"): 50.0, owner("u"): 200.0}


def test_service_is_counted_in_the_bucket_of_its_use():
    world = Clock()
    live = world.accept()
    world.use(live, prompt=100)
    world.use(live, prompt=100, output=3)
    world.next_bucket()
    assert world.last.clients == {owner(): 106.0}
    world.use(live, prompt=100, output=10)
    world.next_bucket()
    assert world.last.clients == {owner(): 14.0}
    assert world.activity.service(owner()) == (120.0, 120.0, 120.0)


def test_buckets_keep_one_object_of_a_client_and_none_of_its_calls():
    world = Clock()
    for _ in range(3):
        world.serve()
        world.refuse()
        world.next_bucket()
    buckets = world.activity.buckets().values()
    kept = {id(client) for bucket in buckets for client in (*bucket.clients, *bucket.refused)}
    assert (len(buckets), len(kept)) == (3, 1)


def test_a_bucket_closes_on_the_first_later_event():
    """The first event after the end of a bucket closes it and counts in the next one."""
    world = Clock()
    live = world.accept()
    world.use(live, prompt=10)
    world.now_s += 4.999
    world.use(live, prompt=20)
    world.now_s += 0.001
    world.use(live, prompt=50)
    assert world.last.clients == {owner(): 20.0}


def test_windows_drop_old_buckets():
    world = Clock()
    world.serve(tokens=7)
    world.next_bucket(12)
    assert world.activity.service(owner()) == (7.0, 7.0, 7.0)
    world.next_bucket()
    assert world.activity.service(owner()) == (0.0, 7.0, 7.0)
    world.serve(tokens=1)
    world.refuse()
    world.next_bucket(48)
    assert world.activity.service(owner()) == (0.0, 1.0, 8.0)
    world.next_bucket(BUCKETS - 48)
    assert world.activity.service(owner()) == (0.0, 0.0, 1.0)
    assert world.activity.refusals(owner()) == 1
    world.next_bucket()
    assert list(world.activity.clients()) == []
    assert world.activity.refusals(owner()) == 0
    assert not world.activity.buckets()


@pytest.mark.parametrize("gap", [BUCKETS - 1, BUCKETS, 10 * BUCKETS])
def test_a_long_idle_time_empties_all_windows(gap):
    world = Clock()
    for _ in range(20):
        world.serve(tokens=3)
        world.next_bucket()
    world.next_bucket(gap)
    left = 3.0 if gap == BUCKETS - 1 else 0.0
    assert world.activity.service(owner()) == (0.0, 0.0, left)
    assert len(world.activity.buckets()) == (1 if left else 0)


def test_a_closed_bucket_names_only_the_largest_clients(monkeypatch):
    monkeypatch.setattr(activity_bucket, "MAX_CLIENTS", 3)
    world = Clock()
    for number in range(10):
        world.serve(f"u{number}", tokens=10 * number + 1)
    world.next_bucket()
    assert world.last.clients == {owner("u9"): 91.0, owner("u8"): 81.0, owner("u7"): 71.0}
    assert world.last.others == (7, 217.0)
    assert (world.last.whole.clients, world.last.whole.service) == (10, 460.0)
    assert set(world.activity.clients()) == {owner("u9"), owner("u8"), owner("u7")}


def test_rejected_clients_have_a_separate_name_bound(monkeypatch):
    monkeypatch.setattr(activity_bucket, "MAX_CLIENTS", 1)
    monkeypatch.setattr(activity_bucket, "MAX_REFUSED", 1)
    world = Clock()
    world.serve("served")
    for user in ("flood", "flood", "once"):
        world.refuse(user)
    world.next_bucket()
    assert set(world.activity.clients()) == {owner("served"), owner("flood")}
    assert world.activity.refusals(owner("flood")) == 2
    assert world.last.whole.refused == {"rpm_user_limit": 3}


def test_unnamed_tenants_count_in_the_total(monkeypatch):
    monkeypatch.setattr(activity_bucket, "MAX_TENANTS", 2)
    world = Clock()
    for number in range(4):
        world.serve(tenant=f"t{number}", tokens=number + 1)
    world.next_bucket()
    assert list(world.last.tenants) == ["t3", "t2"]
    assert world.last.other_tenants == 2
    assert world.last.whole.accepted == 4
    assert world.last.whole.service == 10.0


def test_known_clients_are_bounded(monkeypatch):
    monkeypatch.setattr("fairserve.platform.monitoring.activity.MAX_KNOWN", 100)
    world = Clock()
    world.serve("large", tokens=10_000)
    for number in range(500):
        world.serve(f"u{number}", tokens=1 + number % 5)
        if number % 10 == 9:
            world.next_bucket()
            assert sum(1 for _ in world.activity.clients()) <= 100
    assert owner("large") in set(world.activity.clients())
    # Evicted and seen again: its earlier counts are neither restored nor subtracted.
    world.serve("u0", tokens=4)
    world.next_bucket()
    world.next_bucket(BUCKETS)
    assert all(
        value >= 0 for each in world.activity.clients() for value in world.activity.service(each)
    )
    world.next_bucket()
    assert not list(world.activity.clients())


def test_reasons_are_bounded():
    counts = Counts()
    for number in range(100):
        counts.refuse(f"r{number}")
    assert len(counts.refused) == activity_bucket.MAX_REASONS + 1
    assert sum(counts.refused.values()) == 100


def test_call_outcomes_are_counted_by_tenant():
    world = Clock()
    world.serve(tokens=100, cached=60)
    world.serve(tokens=50, worker="w1", outcome="failed")
    world.serve(tenant="other", tokens=8)
    world.refuse(reason="blocked")
    queued = world.accept("late")
    world.activity.run_opened("t")
    world.activity.run_ended(RunEnd("run", "other", "app", "user", "complete", 1, 8, 0, ""))
    world.next_bucket()
    own, other, whole = *(world.last.tenants[name] for name in ("t", "other")), world.last.whole
    assert (own.accepted, own.ended, own.refused) == (
        3,
        {"completed": 1, "failed": 1},
        {"blocked": 1},
    )
    assert (own.prompt_tokens, own.cached_tokens, own.service) == (150, 60, 150.0)
    assert (own.queued, own.running, own.runs_begun, own.runs_ended) == (1, 0, 1, 0)
    assert (other.accepted, other.ended, other.refused) == (1, {"completed": 1}, {})
    assert (other.queued, other.runs_begun, other.runs_ended) == (0, 0, 1)
    assert (whole.accepted, whole.prompt_tokens, whole.runs_begun) == (4, 158, 1)
    assert world.last.workers == {"w0": (108, 60), "w1": (50, 0)}
    assert world.activity.live_calls(owner("late")) == (1, 0)
    world.activity.call_dropped(queued)
    assert world.activity.live_calls(owner("late")) == (0, 0)


def test_a_requeued_call_counts_as_waiting():
    world = Clock()
    live = world.accept()
    world.activity.call_granted(live)
    live.worker_id = "w0"
    assert world.activity.live_calls(owner()) == (0, 1)
    world.activity.call_requeued(live)
    live.worker_id = None
    assert world.activity.live_calls(owner()) == (1, 0)
    world.activity.call_dropped(live)
    assert world.activity.live_calls(owner()) == (0, 0)


@pytest.mark.parametrize("delay_s", [0.0011, 0.02, 0.5, 3.0, 119.0])
def test_delays_are_reported_with_an_eighth_precision(delay_s):
    counts = Counts()
    assert counts.delay_quantile(0.5) is None
    for _ in range(99):
        counts.delay(delay_s)
    assert counts.delay_quantile(0.5) == pytest.approx(delay_s, rel=0.125)
    counts.delay(10 * delay_s)
    assert counts.delay_quantile(0.99) == pytest.approx(delay_s, rel=0.125)
    assert counts.delay_quantile(1.0) == pytest.approx(10 * delay_s, rel=0.125)
    counts.delay(0.0)
    assert counts.delay_quantile(0.0) == 0.0


def test_the_wait_of_a_call_is_recorded_once():
    world = Clock()
    live = world.accept()
    world.activity.call_granted(live)
    live.worker_id, live.started, live.queue_s = "w0", True, 2.0
    world.activity.call_started(live, world.now_s)
    world.activity.call_ended(live, "completed", world.now_s)
    world.next_bucket()
    assert sum(world.last.whole.delays.values()) == 1


def test_jains_index_is_computed_over_weighted_service():
    world = Clock(heavy=3.0)
    world.serve("heavy", tokens=300)
    world.serve("light", tokens=100)
    world.next_bucket()
    assert world.last.whole.jain == 1.0
    world.serve("light", tokens=200)
    world.next_bucket()
    assert world.last.whole.jain == 1.0, "the only one with demand"


def test_a_waiting_client_without_service_has_demand():
    world = Clock()
    world.accept("waits")
    world.serve("served")
    world.serve("there", tenant="other")
    world.next_bucket()
    assert world.last.tenants["t"].jain == 0.5
    assert world.last.tenants["other"].jain == 1.0
    assert world.last.whole.jain == pytest.approx(2 / 3)
    world.next_bucket()
    assert world.last.whole.jain is None, "nothing was divided"
