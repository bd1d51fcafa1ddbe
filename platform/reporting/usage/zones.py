"""Days and hours of a time zone as ranges of UTC epoch seconds.

A zone is a step function of offsets from UTC. Steps and offsets have been multiples of quarter hours
nearly everywhere since 1972, so a local hour consists of quarter hours of UTC. If a clock changed at
another minute (Newfoundland until 2011, at 00:01), the whole quarter hour counts as changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.reporting.usage.levels import DAY_S


class Offset(NamedTuple):
    """The offset of local clocks from UTC in seconds, from ``start_s`` on."""

    start_s: int
    seconds: int


def zone_named(name: str) -> ZoneInfo:
    """Return the zone. Raises InvalidRequestError if the IANA database does not have it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidRequestError(
            "there is no such time zone; use an IANA name such as Europe/Berlin", param="zone"
        ) from None


def day_bounds(
    first: date | None, last: date | None, zone: ZoneInfo
) -> tuple[int | None, int | None]:
    """Return the start of ``first`` and the end of ``last`` in epoch seconds; None is open."""
    begin_s = None if first is None else _midnight(first, zone)
    if last is None or last >= date.max - timedelta(days=1):
        return begin_s, None
    return begin_s, _midnight(last + timedelta(days=1), zone)


def _midnight(day: date, zone: ZoneInfo) -> int:
    """Return the start of the day, even if clocks skip or repeat midnight."""
    if day <= date.min + timedelta(days=1):
        return 0
    return int(datetime.combine(day, time(), zone).timestamp())


def offsets(zone: ZoneInfo, begin_s: int, end_s: int) -> Sequence[Offset]:
    """Return the offsets between two times: at least one, the first at ``begin_s``."""
    found = [Offset(begin_s, _offset(zone, begin_s))]
    at_s = begin_s
    while at_s < end_s:
        next_s = min(at_s + DAY_S, end_s)
        if _offset(zone, next_s) != found[-1].seconds:
            before_s, after_s = at_s, next_s
            while after_s - before_s > 1:
                middle_s = (before_s + after_s) // 2
                if _offset(zone, middle_s) == found[-1].seconds:
                    before_s = middle_s
                else:
                    after_s = middle_s
            found.append(Offset(after_s, _offset(zone, after_s)))
        at_s = next_s
    return found


def _offset(zone: ZoneInfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def local_day(number: int) -> date:
    """Return the day of a number of days since 1970-01-01."""
    return date(1970, 1, 1) + timedelta(days=number)
