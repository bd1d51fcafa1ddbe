"""Test the counts of an app's calls: shares of rejections, and the oldest call that waits."""

from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.app_calls import BUCKETS, AppCalls

APP = ("tn", "app")
ids = iter(range(10_000))


def waiting_call(calls, now_s, user="ann"):
    """Return a call that waits from now on."""
    number = next(ids)
    call = make_call(f"c{number}", tenant=APP[0], app=APP[1], user=user)
    live = CallState(call, f"r{number}", "", now_s, now_s)
    calls.call_accepted(live, now_s)
    return live


def test_calls_that_lose_their_places_later_are_a_share_of_those_that_asked():
    calls = AppCalls()
    lost = [waiting_call(calls, 1.0, f"u{number}") for number in range(8)]
    later_s = BUCKET_S + 1.0
    waiting_call(calls, later_s, "u0")
    for live in lost:
        calls.call_ended(live, "refused", later_s)
    calls.settle(2 * BUCKET_S)
    # The window of one bucket has the rejections of calls of an earlier one.
    for window, made in ((calls.window(APP, 1), 8), (calls.minute(APP), 9)):
        assert (window.rejected, window.calls) == (8, made)
        assert 0.8 < window.rejected_share <= 1.0
    assert window.reason == "queue_full"


def test_a_call_that_is_queued_again_has_waited_since_its_submission():
    calls = AppCalls()
    first = waiting_call(calls, 1.0)
    calls.call_started(first, 2.0)
    waiting_call(calls, 3.0)
    calls.call_requeued(first)
    waiting = calls.waiting(APP, 11.0)
    assert (waiting.calls, waiting.oldest_s) == (2, 10.0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 14),
            st.sampled_from("ab"),
            st.sampled_from(["ann", "bob"]),
            st.sampled_from(["", "refused", "failed", "contract_rpm"]),
        ),
        max_size=40,
    )
)
def test_the_sums_of_a_minute_are_those_of_its_buckets(events):
    calls, now_s = AppCalls(), 0.0
    for number, (buckets, app, user, what) in enumerate(events):
        now_s += buckets * BUCKET_S
        call = make_call(f"c{number}", tenant="tn", app=app, user=user)
        call.pool = f"m{number}"
        live = CallState(call, f"r{number}", "", now_s, now_s)
        if what == "contract_rpm":
            calls.call_rejected(live, what, now_s)
            continue
        calls.call_accepted(live, now_s)
        if what != "refused":
            calls.call_started(live, now_s)
        if what:
            calls.call_ended(live, what, now_s)
    for later_s in (0.0, BUCKET_S, 6 * BUCKET_S):
        calls.settle(now_s + later_s)
        for each in "ab":
            assert calls.minute(("tn", each)) == calls.window(("tn", each), BUCKETS)
    calls.settle(now_s + (BUCKETS + 1) * BUCKET_S)
    assert not calls._minute
