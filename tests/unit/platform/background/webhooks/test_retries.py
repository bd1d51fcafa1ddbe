"""Test the delays between delivery attempts."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from fairserve.platform.background.webhooks.retries import (
    DELAYS_S,
    JITTER,
    delay_s,
    pause_s,
    retry_after_s,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_delays_grow_with_deterministic_jitter():
    for attempts, step_s in enumerate(DELAYS_S, start=1):
        found = {delay_s("wh_1", f"evt_{number}", attempts) for number in range(50)}
        assert len(found) == 50
        assert all(step_s <= each < step_s * (1 + JITTER) for each in found)
        assert delay_s("wh_1", "evt_1", attempts) == delay_s("wh_1", "evt_1", attempts)
    assert delay_s("wh_1", "e", 40) >= DELAYS_S[-1]


def test_retry_after_is_honoured_up_to_the_next_delay():
    assert delay_s("wh", "evt", 1, 20.0) == 20.0
    assert delay_s("wh", "evt", 1, 1000.0) == DELAYS_S[1]
    assert delay_s("wh", "evt", 1, 0.0) == delay_s("wh", "evt", 1)
    assert delay_s("wh", "evt", len(DELAYS_S), 1e9) == delay_s("wh", "evt", len(DELAYS_S))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("²", None),
        ("17", 17.0),
        (" 17 ", 17.0),
        ("9" * 50, 1e9),
        (format_datetime(NOW + timedelta(seconds=90)), 90.0),
        (format_datetime(NOW - timedelta(seconds=90)), 0.0),
        ("Fri, 01 May 2026 12:01:00", 60.0),
    ],
)
def test_retry_after_header_is_parsed(value, found):
    assert retry_after_s(value, NOW) == found


def test_a_failing_endpoint_pauses_no_longer_than_its_event_lives():
    assert [pause_s(failures) for failures in (1, 4, 5, 6, 9, 10, 500)] == [
        0,
        0,
        30,
        60,
        480,
        600,
        600,
    ]
    for failures in range(5, 40):
        assert pause_s(failures) <= delay_s("wh", "evt", failures)
