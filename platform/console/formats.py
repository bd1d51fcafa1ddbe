"""Formats of numbers and times on the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from fairserve.platform.db.base import utc_now

NOTHING = "–"  # noqa: RUF001


def number(value: float | None) -> str:
    """Format as ``12,345``; small fractions keep three digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def short(value: float | None) -> str:
    """Format as ``12.3k``, ``4.5M``."""
    if value is None:
        return NOTHING
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:,.3g}{letter}"
    return number(value)


def percent(share: float | None) -> str:
    """Format as ``12.3 %``."""
    if share is None:
        return NOTHING
    digits = 0 if abs(share) >= 0.995 else 1
    return f"{100 * share:.{digits}f} %"


def seconds(value: float | None) -> str:
    """Format as ``340 ms``, ``2.5 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def moment(value: datetime | float | None) -> str:
    """Format as ``2026-01-31 14:05:09`` in UTC."""
    if value is None:
        return NOTHING
    if not isinstance(value, datetime):
        value = datetime.fromtimestamp(value, UTC)
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def local_time(value: datetime | float | None) -> str:
    """Return an element with a time in UTC, which the script shows in the reader's time zone."""
    if value is None:
        return NOTHING
    text = moment(value)
    stamp = text.replace(" ", "T")
    return Markup('<time datetime="{}Z">{} UTC</time>').format(stamp, text)


def ago(value: datetime | None) -> str:
    """Format a past time as ``20 s ago``, ``just now``."""
    if value is None:
        return NOTHING
    passed = round((utc_now() - value).total_seconds())
    if passed < 60:
        return f"{passed} s ago" if passed > 0 else "just now"
    return f"{seconds(passed)} ago"


def money(amount: Decimal | float | None) -> str:
    """Format with two decimals, amounts under 1 with four."""
    if amount is None:
        return NOTHING
    return f"{amount:,.2f}" if amount == 0 or abs(float(amount)) >= 1 else f"{amount:,.4f}"


def value_text(value: Any) -> str:
    """Format the value of a setting: ``yes``, ``none``, a number or a text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def part(text: str) -> str:
    """Escape a text for use as one segment of a path."""
    return quote(text, safe="")


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number,
    "short": short,
    "percent": percent,
    "seconds": seconds,
    "local_time": local_time,
    "ago": ago,
    "money": money,
    "value_text": value_text,
    "part": part,
}
