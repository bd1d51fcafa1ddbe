"""Budget periods, as a function of the UTC time alone.

The start of a period is not stored, so restarts do not shift it, and replicas agree on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_TEXT = re.compile(r"([1-9][0-9]{0,3})(h|d|mo)")
_FIRST = datetime(1970, 1, 5, tzinfo=UTC)
"""A Monday: periods of seven days are weeks."""
ALLOWED = "1h to 24h (dividing a day), 1d to 366d, or 1mo to 12mo (dividing a year)"


@dataclass(frozen=True, slots=True)
class Period:
    """Periods of one length. Hours and days are counted from Monday, 5 January 1970, 0:00 UTC;
    months start on the first, counted from January.
    """

    count: int
    unit: str

    def bounds(self, at: float) -> tuple[float, float]:
        """Return the start and end of the period that contains ``at``, all in UTC epoch seconds."""
        return _bounds(self.count, self.unit, int(at // 3600))


@lru_cache(maxsize=4096)
def _bounds(count: int, unit: str, hour: int) -> tuple[float, float]:
    """Return the bounds of a period; cached, since all times of an hour have the same bounds."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    if unit == "mo":
        month = moment.year * 12 + moment.month - 1
        first = month - month % count
        return _month(first), _month(first + count)
    length = timedelta(hours=count) if unit == "h" else timedelta(days=count)
    begin = _FIRST + (moment - _FIRST) // length * length
    return begin.timestamp(), (begin + length).timestamp()


def _month(number: int) -> float:
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> Period:
    """Parse ``1h``, ``1d``, ``7d`` (a week from Monday) or ``1mo``. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if found is not None:
        count, unit = int(found[1]), found[2]
        if (
            (unit == "h" and 24 % count == 0)
            or (unit == "d" and count <= 366)
            or (unit == "mo" and 12 % count == 0)
        ):
            return Period(count, unit)
    raise ValueError(f"budget_duration is {text!r}; allowed: {ALLOWED}")
