"""Local days and hours agree with those of pandas."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.usage import QUARTER_S
from fairserve.platform.reporting.usage.levels import DAY_S
from fairserve.platform.reporting.usage.zones import day_bounds, local_day, offsets, zone_named

ZONES = [
    "UTC",
    "Europe/Berlin",
    "Asia/Kolkata",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "America/Santiago",  # clocks skip midnight
    "Pacific/Apia",
]
BEGIN = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
END = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())


def offset_at(found, at_s):
    return [offset.seconds for offset in found if offset.start_s <= at_s][-1]


@given(st.sampled_from(ZONES), st.lists(st.integers(BEGIN // QUARTER_S, END // QUARTER_S - 1)))
def test_local_days_agree_with_pandas(name, quarters):
    found = offsets(ZoneInfo(name), BEGIN, END)
    for at_s in (quarter * QUARTER_S for quarter in quarters):
        day = pd.Timestamp(at_s, unit="s", tz="UTC").tz_convert(name).date()
        assert local_day((at_s + offset_at(found, at_s)) // DAY_S) == day
        begin_s, end_s = day_bounds(day, day, ZoneInfo(name))
        assert begin_s <= at_s < end_s


@pytest.mark.parametrize(
    ("day", "hours"),
    [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)],
)
def test_a_day_may_have_23_or_25_hours(day, hours):
    begin_s, end_s = day_bounds(day, day, ZoneInfo("Europe/Berlin"))
    assert end_s - begin_s == hours * 3600


def test_clock_changes_are_found_to_the_second():
    found = offsets(ZoneInfo("Europe/Berlin"), BEGIN, END)
    steps = [datetime.fromtimestamp(offset.start_s, UTC) for offset in found[1:]]
    assert steps == [
        datetime(2025, 3, 30, 1, tzinfo=UTC),
        datetime(2025, 10, 26, 1, tzinfo=UTC),
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
    ]
    assert [offset.seconds for offset in found] == [3600, 7200, 3600, 7200, 3600]


def test_open_ranges_and_calendar_limits():
    zone = ZoneInfo("Asia/Tokyo")
    assert day_bounds(None, None, zone) == (None, None)
    assert day_bounds(date.min, date.max, zone) == (0, None)
    assert day_bounds(None, date.max - timedelta(days=1), zone) == (None, None)


@pytest.mark.parametrize("name", ["Nowhere", "../etc/passwd", "America", "", "UTC\x00"])
def test_an_unknown_zone_is_rejected_with_an_example(name):
    with pytest.raises(InvalidRequestError, match="Europe/Berlin"):
        zone_named(name)
