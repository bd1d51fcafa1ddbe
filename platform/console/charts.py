"""What charts are drawn from: the shapes that the pages' script knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import NotRequired, TypedDict


class Series(TypedDict):
    """A line, or a layer of bars."""

    label: str
    values: Sequence[float | None]


class Limit(TypedDict):
    """A level that is drawn across."""

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
    """Where the axis ends; else a little above the highest value."""


def series(label: str, values: Sequence[float | None]) -> Series:
    """One of a chart."""
    return {"label": label, "values": values}


def at(day: date) -> float:
    """Where a day stands on the axis of time: its noon."""
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
