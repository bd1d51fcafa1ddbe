"""Quotas hold for every history of calls, compared with plain books."""

import json
import math
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from histories import histories
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.interactions.call import TokenUsage
from fairserve.throttling.quotas.contracts import WINDOW_S, Claim, Contracts
from fairserve.throttling.quotas.periods import parse_duration
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota
from fairserve.throttling.quotas.rate_window import RateWindow

START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()

quotas = st.builds(
    Quota,
    rpm_limit=st.none() | st.integers(1, 6),
    tpm_limit=st.none() | st.integers(20, 120),
    max_parallel_requests=st.none() | st.integers(1, 4),
    max_budget=st.integers(0, 300),
    budget_duration=st.sampled_from(["1h", "1d"]),
)
steps = histories(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "end", "end", "wait"]),
        st.sampled_from(["ann", "bob"]),
        st.integers(1, 40),
        st.sampled_from(["used", "refund"]),
        st.sampled_from([0.0, 0.25, 3.0, 20.0, 59.5, 61.0, 1800.0]),
    ),
    60,
)


class Books:
    """Books of the same calls in plain lists, summed only on lookup."""

    def __init__(self):
        self.contracts = Contracts()
        self.now_s = 0.0
        self.live = {}
        self.calls = []
        self.number = 0

    def arrive(self, holders, tokens, cost):
        claim = Claim(tokens, cost, START + self.now_s)
        before = self.contracts.snapshot(self.now_s)
        decision = self.contracts.check(holders, claim, self.now_s)
        assert self.contracts.snapshot(self.now_s)["calls"] == before["calls"]
        if decision.admitted:
            self.number += 1
            call_id = f"c{self.number}"
            self.contracts.reserve(call_id, holders, claim, self.now_s)
            entry = {
                "id": call_id,
                "at": self.now_s,
                "holders": holders,
                "tokens": tokens,
                "cost": cost,
            }
            self.live[call_id] = entry
            self.calls.append(entry)
        return decision

    def end(self, call_id, share, *, refund):
        entry = self.live.pop(call_id)
        entry["tokens"], entry["cost"] = int(entry["tokens"] * share), int(entry["cost"] * share)
        if refund:
            self.calls.remove(entry)
        self.contracts.settle(
            call_id, entry["holders"], entry["tokens"], entry["cost"], refund=refund
        )

    def of(self, holder):
        return [call for call in self.calls if holder in [h for h, _ in call["holders"]]]

    def spent(self, holder, quota, *, live):
        begin, end = quota.period.bounds(START + self.now_s)
        among = [c for c in self.live.values() if holder in [h for h, _ in c["holders"]]]
        calls = [c for c in self.of(holder) if (c in among) == live]
        return sum(c["cost"] for c in calls if begin <= START + c["at"] < end)


def holders_of(user, app, own):
    return [(("app", "a", ""), app), (("user", "t", user), own)]


@given(app=quotas, own=quotas, history=steps)
def test_no_limit_is_exceeded_and_every_sum_is_right(app, own, history):
    books = Books()
    for kind, user, amount, how, wait_s in history:
        if kind == "arrive":
            books.arrive(holders_of(user, app, own), amount, amount * 3)
        elif kind == "end" and books.live:
            books.end(next(iter(books.live)), 0.5, refund=how == "refund")
        else:
            books.now_s += wait_s
            books.contracts.forget_idle(books.now_s)
        for name in ("ann", "bob"):
            for holder, quota in holders_of(name, app, own):
                check_limits(books, holder, quota)


def check_limits(books, holder, quota):
    calls, now_s = books.of(holder), books.now_s
    recent = [call for call in calls if call["at"] > now_s - WINDOW_S]
    if quota.rpm_limit is not None:
        assert len(recent) <= quota.rpm_limit
        counted = [call for call in calls if int(now_s) - int(call["at"]) <= WINDOW_S]
        use = books.contracts.use([(holder, quota)], now_s, START + now_s).requests
        assert use.used == len(counted)
    if quota.tpm_limit is not None:
        assert sum(call["tokens"] for call in recent) <= quota.tpm_limit
    if quota.tpm_limit is not None:
        counted = [call["tokens"] for call in calls if int(now_s) - int(call["at"]) <= WINDOW_S]
        use = books.contracts.use([(holder, quota)], now_s, START + now_s).tokens
        assert use.used == sum(counted)
    live = [c for c in books.live.values() if holder in [h for h, _ in c["holders"]]]
    if quota.max_parallel_requests is not None:
        assert len(live) <= quota.max_parallel_requests
    use = books.contracts.use([(holder, quota)], now_s, START + now_s).budget
    spent = books.spent(holder, quota, live=False)
    held = books.spent(holder, quota, live=True)
    assert (use.spent, use.held) == (spent, held)
    assert spent + held <= quota.max_budget


@example(  # both rates are used up, and tokens are free later than calls
    own=Quota(rpm_limit=2, tpm_limit=20),
    history=[
        ("arrive", "ann", 1, "used", 0.0),
        ("end", "ann", 1, "used", 0.0),
        ("wait", "ann", 1, "used", 59.5),
        ("arrive", "ann", 20, "used", 0.0),
    ],
    amount=13,
)
@given(own=quotas, history=steps, amount=st.integers(1, 40))
def test_a_caller_is_admitted_after_an_exact_retry_after(own, history, amount):
    books = Books()
    holders = [(("user", "t", "ann"), own)]
    for kind, _, tokens, how, wait_s in history:
        if kind == "arrive":
            books.arrive(holders, tokens, 0)
        elif kind == "end" and books.live:
            books.end(next(iter(books.live)), 0.5, refund=how == "refund")
        else:
            books.now_s += wait_s
    for call_id in list(books.live):
        books.end(call_id, 1.0, refund=False)
    rejected = books.arrive(holders, amount, 0)
    if rejected.admitted or rejected.reason == "contract_call_too_large":
        return
    assert rejected.certain
    assert rejected.reason in ("contract_rpm", "contract_tpm")
    began_s, wait_s = books.now_s, rejected.retry_after_s
    assert 0 < wait_s <= 61
    if wait_s > 1.5:  # and at most a second later than necessary
        books.now_s = began_s + wait_s - 1.01
        assert not books.contracts.check(holders, Claim(amount, 0, START), books.now_s).admitted
    books.now_s = began_s + math.ceil(wait_s)
    assert books.arrive(holders, amount, 0).admitted


@given(app=quotas, own=quotas, history=steps, cut=st.integers(0, 59))
def test_a_restored_snapshot_continues_unchanged(app, own, history, cut):
    """The snapshot is restored on another clock, whole seconds apart."""
    now_s, live = 0.0, {}
    both = [(Contracts(), 0.0)]

    def plain(contracts, shift_s):
        return json.loads(json.dumps(contracts.snapshot(now_s + shift_s)))

    for number, (kind, user, amount, how, wait_s) in enumerate(history):
        if number == cut:
            restored = Contracts()
            restored.restore(plain(*both[0]), now_s + 1000.0)
            both.append((restored, 1000.0))
        holders = holders_of(user, app, own)
        if kind == "wait":
            now_s += wait_s
        elif kind == "arrive":
            claim = Claim(amount, amount, START + now_s)
            decisions = [each.check(holders, claim, now_s + shift_s) for each, shift_s in both]
            assert len(set(decisions)) == 1
            if decisions[0].admitted:
                live[f"c{number}"] = holders, amount
                for each, shift_s in both:
                    each.reserve(f"c{number}", holders, claim, now_s + shift_s)
        elif live:
            call_id = next(iter(live))
            holders, amount = live.pop(call_id)
            for each, _ in both:
                each.settle(call_id, holders, amount // 2, amount // 2, refund=how == "refund")
        assert len({str(plain(*each)) for each in both}) == 1


def test_an_active_run_passes_rate_limits_but_no_budget():
    contracts = Contracts()
    quota = Quota(
        rpm_limit=1, max_budget=100, soft_budget=10, soft_end="finish_runs", budget_duration="1d"
    )
    holders = [(("user", "t", "ann"), quota)]
    under_way = Claim(1, 40, START, run_under_way=True)
    for number in range(2):
        assert contracts.check(holders, under_way, 0.0).admitted
        contracts.reserve(f"c{number}", holders, under_way, 0.0)
        contracts.settle(f"c{number}", holders, 1, 40, refund=False)
    assert contracts.check(holders, Claim(1, 1, START), 0.0).reason == "contract_soft_budget"
    spent = contracts.check(holders, under_way, 0.0)
    assert spent.reason == "contract_budget"
    assert spent.retry_after_s == 86_400


def test_reserved_and_spent_amounts_are_separate():
    contracts = Contracts()
    quota = Quota(max_budget=100, budget_duration="1h")
    holders = [(("app", "a", ""), quota)]
    claim = Claim(1, 60, START)
    contracts.reserve("c1", holders, claim, 0.0)
    assert contracts.check(holders, claim, 0.0).reason == "contract_budget_held"
    contracts.settle("c1", holders, 1, 30, refund=False)
    assert contracts.check(holders, claim, 0.0).admitted
    contracts.spent(holders[0][0], quota, 20, START)
    assert contracts.check(holders, claim, 0.0).reason == "contract_budget"
    assert contracts.check(holders, claim._replace(at=START + 3600), 0.0).admitted


def test_users_beyond_the_bound_are_rejected_and_none_evicted(monkeypatch):
    monkeypatch.setattr("fairserve.throttling.quotas.contracts.MAX_ACCOUNTS", 4)
    contracts = Contracts()
    quota = Quota(max_budget=100, budget_duration="1h")
    for number, expected in enumerate(["", "", "contract_too_many_users"]):
        holders = [(("app_user", "a", f"u{number}"), quota)]
        decision = contracts.check(holders, Claim(1, 60, START), 0.0)
        assert decision.reason == expected
        # Also for the rejected call: a disabled limit would not have rejected it.
        contracts.reserve(f"c{number}", holders, Claim(1, 60, START), 0.0)
    assert len(contracts.snapshot(0.0)["accounts"]) == 2
    assert decision.retry_after_s == 3600
    first = [(("app_user", "a", "u0"), quota)]
    assert contracts.check(first, Claim(1, 60, START), 0.0).reason == "contract_budget_held"
    contracts.settle("c2", holders, 1, 60, refund=False)
    contracts.reserve("next", [], Claim(1, 1, START + 3600), 3600.0)
    contracts.forget_idle(3600.0)
    assert contracts.check(holders, Claim(1, 60, START + 3600), 3600.0).admitted


def test_a_budget_counts_calls_older_than_itself():
    contracts = Contracts()
    contracts.reserve("c1", [], Claim(1, 60, START), 0.0)
    quota = Quota(max_budget=100, budget_duration="1h")
    holders = [(("app", "a", ""), quota)]
    contracts.settle("c1", holders, 1, 55, refund=False)
    assert contracts.use(holders, 0.0, START).budget.spent == 55


def test_a_call_of_the_last_period_is_not_charged_to_the_next():
    contracts = Contracts()
    quota = Quota(max_budget=100, budget_duration="1h")
    holders = [(("app", "a", ""), quota)]
    contracts.reserve("old", holders, Claim(1, 90, START), 0.0)
    contracts.reserve("new", holders, Claim(1, 20, START + 3600), 3600.0)
    contracts.settle("old", holders, 1, 90, refund=False)
    use = contracts.use(holders, 3600.0, START + 3600).budget
    assert (use.spent, use.held) == (0, 20)


# --- periods, windows, prices ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("1h", "2026-11-22T14:00", "2026-11-22T15:00"),
        ("6h", "2026-11-22T12:00", "2026-11-22T18:00"),
        ("1d", "2026-11-22T00:00", "2026-11-23T00:00"),
        ("7d", "2026-11-16T00:00", "2026-11-23T00:00"),
        ("1mo", "2026-11-01T00:00", "2026-12-01T00:00"),
        ("3mo", "2026-10-01T00:00", "2027-01-01T00:00"),
        ("12mo", "2026-01-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_periods_follow_the_calendar(text, first, last):
    at = datetime(2026, 11, 22, 14, 41, tzinfo=UTC).timestamp()
    bounds = [datetime.fromisoformat(each + "+00:00").timestamp() for each in (first, last)]
    assert list(parse_duration(text).bounds(at)) == bounds


@given(
    st.sampled_from(["1h", "8h", "1d", "5d", "7d", "366d", "1mo", "4mo", "12mo"]),
    st.floats(0, 4e9),
)
def test_periods_contain_their_time_and_are_contiguous(text, at):
    period = parse_duration(text)
    begin, end = period.bounds(at)
    assert begin <= at < end
    assert period.bounds(begin) == (begin, end)
    assert period.bounds(end)[0] == end


@pytest.mark.parametrize(
    "text", ["", "1", "d", "0d", "5h", "367d", "5mo", "1w", "1d ", "-1d", "1\u0661d"]
)
def test_other_durations_are_rejected_with_the_allowed_ones(text):
    with pytest.raises(ValueError, match="allowed: 1h to 24h"):
        parse_duration(text)


@given(histories(st.tuples(st.floats(0, 30), st.integers(0, 9)), 40), st.integers(0, 60))
def test_a_window_counts_like_a_list_of_times(events, room):
    window, now_s, log = RateWindow(60.0), 0.0, defaultdict(int)
    for wait_s, amount in events:
        now_s += wait_s
        window.drop_old(now_s)
        window.add(amount, now_s)
        log[int(now_s)] += amount
        assert window.total == sum(n for second, n in log.items() if int(now_s) - second <= 60)
    free_s = window.free_after_s(room, now_s)
    window.drop_old(now_s + free_s)
    assert window.total <= room


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
    st.tuples(*[st.integers(0, 10**8)] * 3, st.none() | st.integers(0, 10**8)),
)
def test_a_cost_is_exact_and_never_above_its_maximum(prompt, cached, output, reasoning, prices):
    """Reasoning is a part of the output, however much of it a worker reports, and paid once."""
    *others, of_reasoning = prices
    price = TokenPrice(*others, reasoning=of_reasoning)
    usage = TokenUsage(prompt, 0, min(cached, prompt), output, reasoning)
    thought = min(reasoning, output)
    exact = (
        usage.extend_tokens * prices[0]
        + usage.cached_tokens * prices[1]
        + (output - thought) * prices[2]
        + thought * (prices[2] if of_reasoning is None else of_reasoning)
    ) / 1000
    assert abs(price.cost(usage) - exact) <= 0.5 + exact * 1e-12
    assert price.cost(usage) <= price.most(prompt, output)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"rpm_limit": 0}, "rpm_limit is 0; allowed: 1 to"),
        ({"tpm_limit": 10**10}, "tpm_limit"),
        ({"max_budget": 5}, "a budget needs a budget_duration"),
        ({"soft_budget": 5}, "a budget needs a budget_duration"),
        ({"max_budget": 5, "budget_duration": "2w"}, "budget_duration is '2w'"),
        ({"max_budget": -1, "budget_duration": "1d"}, "max_budget"),
        ({"max_budget": 1, "soft_budget": 2, "budget_duration": "1d"}, "over max_budget"),
        ({"soft_end": "stop"}, "soft_end is 'stop'"),
    ],
)
def test_invalid_limits_are_named(limits, named):
    with pytest.raises(ValueError, match=named):
        Quota(**limits)


def test_own_limits_replace_the_common_ones():
    each = Quota(rpm_limit=5, tpm_limit=100, max_budget=10, budget_duration="1d")
    assert each.without(Quota()) == each
    assert each.without(Quota(rpm_limit=50)) == Quota(
        tpm_limit=100, max_budget=10, budget_duration="1d"
    )
    own = Quota(soft_budget=4, budget_duration="1mo")
    assert each.without(own) == Quota(rpm_limit=5, tpm_limit=100, budget_duration="1d")


@given(
    history=histories(
        st.tuples(
            st.sampled_from([0.0, 30.0, 2 * 86_400.0, -2 * 86_400.0, -3600.0, 3600.0]),
            st.booleans(),
        ),
        30,
    )
)
def test_a_budget_stays_enforced_when_the_clock_jumps_and_returns(history):
    """Whatever the clock shows, at most the budget is spent between two of its jumps."""
    contracts, quota = Contracts(), Quota(max_budget=100, budget_duration="1d")
    holders = [(("app", "a", ""), quota)]
    at, spent, most, running = START + 3 * 86_400, 0, 100, []
    for number, (jump_s, ends) in enumerate(history):
        if jump_s:
            at, spent, most = at + jump_s, 30 * len(running), 100 + 30 * len(running)
        claim = Claim(1, 30, at)
        if contracts.check(holders, claim, 0.0).admitted:
            contracts.reserve(f"c{number}", holders, claim, 0.0)
            running.append(f"c{number}")
            spent += 30
        if ends and running:
            contracts.settle(running.pop(0), holders, 1, 30, refund=False)
        assert spent <= most
        use = contracts.use(holders, 0.0, at).budget
        assert 0 <= use.held <= 30 * len(running)
        again = Contracts()
        again.restore(json.loads(json.dumps(contracts.snapshot(0.0))), 0.0)
        assert again.use(holders, 0.0, at) == contracts.use(holders, 0.0, at)
    for call_id in running:
        contracts.settle(call_id, holders, 1, 30, refund=False)
    assert contracts.use(holders, 0.0, at).budget.held == 0


def test_a_budget_recovers_from_a_clock_that_was_two_days_ahead_for_a_minute():
    contracts, quota = Contracts(), Quota(max_budget=100, budget_duration="1d")
    holders = [(("app", "a", ""), quota)]
    contracts.reserve("ahead", holders, Claim(1, 20, START + 2 * 86_400), 0.0)
    contracts.settle("ahead", holders, 1, 20, refund=False)
    admitted = 0
    for number in range(10):
        claim = Claim(1, 20, START + 60 + number)
        if contracts.check(holders, claim, 60.0).admitted:
            contracts.reserve(f"c{number}", holders, claim, 60.0)
            contracts.settle(f"c{number}", holders, 1, 20, refund=False)
            admitted += 1
    assert admitted == 4
