"""Ages are exact: a time comes back bit by bit on its own clock, and in order on another one."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.interactions.ages import age_of, time_of

times_s = st.floats(-1e9, 1e9)


def plain(age):
    return json.loads(json.dumps(age))


@given(times_s, times_s)
@example(1.2876004072465754, 61.287600407246575)
@example(0.1, 1e9)
@example(1e9, 0.3)
def test_a_time_is_restored_exactly_on_the_same_clock(time_s, now_s):
    assert time_of(plain(age_of(time_s, now_s)), now_s) == time_s


@given(st.lists(times_s, min_size=2, max_size=9), times_s, times_s)
def test_times_keep_their_order_on_another_clock(times, now_s, other_s):
    shifted = [time_of(age_of(each, now_s), other_s) for each in sorted(times)]
    assert shifted == sorted(shifted)


def test_an_age_of_older_snapshots_is_one_number():
    assert time_of(2.5, 10.0) == 7.5


def test_times_without_end_stay_so():
    assert time_of(age_of(float("inf"), 3.0), 3.0) == float("inf")
