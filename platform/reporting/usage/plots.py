"""Plots of a report's HTML page, as SVG. Only this module imports matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, NamedTuple

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.reporting.usage.schemas import Quantiles, UsageRow
from fairserve.platform.reporting.usage.table import NO_EXTRA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, ROW_IN = 10.0, 0.22
_BLUE, _GREEN, _ORANGE, _GREY = "#3566a8", "#4b9b6b", "#d98032", "#9aa4b1"
_LABEL_CHARS = 28
_MOST_TICKS = 8
_HALF_A_DAY = timedelta(hours=12)
"""Margin of the time axis: the bar of a day is centred on midnight."""


class PlotPeriod(NamedTuple):
    """First and last day of a time axis."""

    first: date
    last: date


def tokens_by_day(days: Sequence[UsageRow], period: PlotPeriod) -> str:
    """Plot computed and cached prompt tokens and output tokens, stacked."""
    figure, axes = _figure(2.8)
    dates = [_day(row) for row in days]
    parts = (
        ("in, computed", _BLUE, [_computed(row) for row in days]),
        ("in, cached", _GREEN, [row.cached_tokens for row in days]),
        ("out", _ORANGE, [row.output_tokens for row in days]),
    )
    bottom = [0] * len(days)
    for label, colour, values in parts:
        axes.bar(dates, values, bottom=bottom, label=label, color=colour, width=0.9)  # type: ignore[arg-type]
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set_ylabel("tokens")
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    _time_axis(axes, period)
    return _svg(figure)


def cost_by_group(labels: Sequence[str], costs: Sequence[float], currency: str) -> str:
    """Plot one bar per group, the first at the top."""
    figure, axes = _figure(0.9 + ROW_IN * len(labels))
    axes.barh(range(len(labels)), costs, color=_BLUE)
    _group_axis(axes, labels)
    axes.set_xlabel(currency)
    return _svg(figure)


def shares(labels: Sequence[str], service: Sequence[float], entitled: Sequence[float]) -> str:
    """Plot two bars per group: its share of the service, and its entitled share."""
    figure, axes = _figure(1.0 + 1.5 * ROW_IN * len(labels))
    places = range(len(labels))
    axes.barh([place - 0.2 for place in places], [100 * s for s in service], 0.38, color=_BLUE)
    axes.barh([place + 0.2 for place in places], [100 * s for s in entitled], 0.38, color=_GREY)
    _group_axis(axes, labels)
    axes.set_xlabel("% of the service")
    axes.legend(
        ["received", "entitled"], frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1)
    )
    return _svg(figure)


def durations_by_day(days: Sequence[UsageRow], period: PlotPeriod) -> str:
    """Plot quantiles of queue delay and time to first token, side by side."""
    from matplotlib.ticker import StrMethodFormatter

    figure, left = _figure(2.8, columns=2)
    axes = [left, figure.axes[1]]
    titles: Mapping[str, str] = {"queue_delay_s": "queue delay", "ttft_s": "time to first token"}
    for (field, title), one in zip(titles.items(), axes, strict=True):
        measured = [(_day(row), getattr(row, field)) for row in days]
        points: list[tuple[date, Quantiles]] = [(day, q) for day, q in measured if q.count]
        for name, colour in (("p50", _GREEN), ("p90", _BLUE), ("p99", _ORANGE)):
            values = [getattr(q, name) for _, q in points]
            one.plot([day for day, _ in points], values, "o-", ms=3, color=colour, label=name)  # type: ignore[arg-type]
        one.set_title(title, loc="left", fontsize=10)
        one.set_ylabel("seconds")
        one.set_ylim(bottom=0)
        one.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        one.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        _time_axis(one, period)
    return _svg(figure)


def _computed(row: UsageRow) -> int:
    return max(0, row.input_tokens - row.cached_tokens)


def _day(row: UsageRow) -> date:
    assert row.day is not None
    return row.day


def require_figures() -> type[Figure]:
    """Return matplotlib's figure class. Raises InvalidRequestError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InvalidRequestError(NO_EXTRA, param="format") from None
    return Figure


def _figure(height_in: float, columns: int = 1) -> tuple[Figure, Axes]:
    figure = require_figures()((WIDTH_IN, height_in), layout="constrained", facecolor="white")
    for number in range(columns):
        axes = figure.add_subplot(1, columns, number + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure, figure.axes[0]


def _time_axis(axes: Axes, period: PlotPeriod) -> None:
    from matplotlib.dates import (
        DAILY,
        AutoDateLocator,
        ConciseDateFormatter,
        DateLocator,
        DayLocator,
    )
    from matplotlib.ticker import EngFormatter

    locator: DateLocator = DayLocator()  # type: ignore[no-untyped-call]
    if (period.last - period.first).days >= _MOST_TICKS:
        locator = auto = AutoDateLocator(minticks=2, maxticks=_MOST_TICKS)  # type: ignore[no-untyped-call]
        auto.intervald[DAILY] = [1, 2, 3, 7, 14]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    first, last = (datetime.combine(day, time()) for day in period)
    axes.set_xlim(first - _HALF_A_DAY, last + _HALF_A_DAY)  # type: ignore[arg-type]
    if axes.get_ylabel() == "tokens":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", color="#e4e7ec", linewidth=0.6)
    axes.set_axisbelow(True)


def _group_axis(axes: Axes, labels: Sequence[str]) -> None:
    shown = [
        text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…" for text in labels
    ]
    # A dollar sign in a name must not start a formula.
    axes.set_yticks(range(len(labels)), labels=shown, parse_math=False)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e7ec", linewidth=0.6)
    axes.set_axisbelow(True)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for scripts that the font lacks
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
