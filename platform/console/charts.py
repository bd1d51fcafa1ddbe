"""Data types of charts, as expected by the pages' script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import NotRequired, TypedDict


class Series(TypedDict):
    """A line or a layer of bars."""

    label: str
    values: Sequence[float | None]


class Limit(TypedDict):
    """A horizontal line."""

    label: str
    value: float


class Chart(TypedDict):
    """One chart; ``time`` is in UTC epoch seconds."""

    time: Sequence[float]
    series: list[Series]
    stacked: NotRequired[bool]
    bars: NotRequired[bool]
    limits: NotRequired[list[Limit]]
    top: NotRequired[float]
    """End of the axis; by default slightly above the highest value."""


def series(label: str, values: Sequence[float | None]) -> Series:
    """Return one series of a chart."""
    return {"label": label, "values": values}


def at(day: date) -> float:
    """Return the position of a day on the time axis, its noon."""
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
