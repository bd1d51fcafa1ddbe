"""Render a report as one self-contained HTML page, for the screen and for A4 paper."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, Template

from fairserve.platform.db.schemas import MAX_PAGE
from fairserve.platform.reporting.usage import plots
from fairserve.platform.reporting.usage.plots import PlotPeriod
from fairserve.platform.reporting.usage.schemas import (
    Group,
    Sort,
    UsageQuery,
    UsageReport,
    UsageRow,
)
from fairserve.platform.reporting.usage.table import MAX_ROWS
from fairserve.platform.reporting.usage.zones import zone_named

MOST_BARS = 15
Ask = Callable[[UsageQuery], UsageReport]
_TIMES = ("day", "hour")
_EARLIEST, _LATEST = date(1970, 1, 1), date(9998, 12, 31)
"""First and last supported day of an axis."""


class Plot(NamedTuple):
    """A plot with its caption; ``text`` is its description."""

    title: str
    text: str
    source: str


def to_html(query: UsageQuery, ask: Ask, default_group: Group) -> bytes:
    """Return the page. ``ask`` computes reports; without groups bars are by ``default_group``."""
    report = ask(query)
    by_day = ask(_asked(query, ["day"], MAX_ROWS, "name"))
    holders = [group for group in query.group_by if group not in _TIMES] or [default_group]
    by_holder = ask(_asked(query, holders, MAX_PAGE, "cost" if report.sums.cost else "tokens"))
    page = _template().render(
        report=report,
        query=query,
        plots=_plots(by_day, by_holder, _period(query, by_day)),
        groups=report.group_by,
        last=min(report.offset + len(report.items), report.total),
        label=lambda row, group: _name(report, row, group),
        money=_money,
        seconds=_seconds,
    )
    return page.encode("utf-8")


def _asked(query: UsageQuery, groups: Sequence[Group], limit: int, sort: Sort) -> UsageQuery:
    asked = {"group_by": list(groups), "limit": limit, "offset": 0, "sort": sort}
    return query.model_copy(update=asked)


def _period(query: UsageQuery, by_day: UsageReport) -> PlotPeriod | None:
    """Return the days of the query; an open end becomes the first or last day with usage.

    None without usage.
    """
    days = [row.day for row in by_day.items if row.day is not None]
    if not days:
        return None
    made = (
        days[-1] if by_day.as_of is None else by_day.as_of.astimezone(zone_named(query.zone)).date()
    )
    first = query.first_day or days[0]
    last = query.last_day or max(days[-1], made)
    return PlotPeriod(max(first, _EARLIEST), min(last, _LATEST))


def _plots(by_day: UsageReport, by_holder: UsageReport, period: PlotPeriod | None) -> list[Plot]:
    found = []
    if period is not None:
        found.append(_plot("Tokens per day", plots.tokens_by_day(by_day.items, period)))
    what = " and ".join(by_holder.group_by)
    costly = sorted((row for row in by_holder.items if row.cost), key=lambda row: -row.cost)
    if costly := costly[:MOST_BARS]:
        labels = [_label(by_holder, row) for row in costly]
        costs = [float(row.cost) for row in costly]
        title = f"Cost by {what}{_most(costly, by_holder)}"
        found.append(_plot(title, plots.cost_by_group(labels, costs, by_holder.currency)))
    served = [row for row in by_holder.items if row.fairness is not None]
    served = sorted(served, key=lambda row: -row.service)[:MOST_BARS]
    if served:
        title = f"Received and entitled share of the service, by {what}"
        drawn = plots.shares(
            [_label(by_holder, row) for row in served],
            [row.fairness.service_share for row in served if row.fairness],
            [row.fairness.entitled_share for row in served if row.fairness],
        )
        found.append(_plot(title + _most(served, by_holder), drawn))
    measured = any(row.queue_delay_s.count or row.ttft_s.count for row in by_day.items)
    if period is not None and measured:
        title = "Queue delay and time to first token, quantiles per day"
        found.append(_plot(title, plots.durations_by_day(by_day.items, period)))
    return found


def _plot(title: str, svg: str) -> Plot:
    source = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return Plot(title, title, f"data:image/svg+xml;base64,{source}")


def _most(shown: Sequence[UsageRow], report: UsageReport) -> str:
    return f" (the {len(shown)} largest)" if len(shown) == MOST_BARS < report.total else ""


def _label(report: UsageReport, row: UsageRow) -> str:
    return " / ".join(_name(report, row, group) for group in report.group_by)


def _name(report: UsageReport, row: UsageRow, group: Group) -> str:
    if group == "hour":
        return "" if row.hour is None else row.hour.strftime("%Y-%m-%d %H:%M %z")
    value = str(getattr(row, group))
    return report.names.get(value, value) if group in ("tenant", "app") else value


def _money(amount: Decimal | None) -> str:
    if amount is None:
        return "–"  # noqa: RUF001
    return f"{amount:,.2f}" if amount == 0 or abs(amount) >= 1 else f"{amount:,.4f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"  # noqa: RUF001


@cache
def _template() -> Template:
    text = Path(__file__).with_name("page.html.jinja").read_text("utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
