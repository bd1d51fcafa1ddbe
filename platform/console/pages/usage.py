"""Usage reports: sums beside those of the period before, charts, shares, and downloads.

Weakness: what is compared with the period before are the ``MAX_PAGE`` groups with most tokens of each
period; a group that is not among them counts as one without usage there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from fairserve.platform.console import charts
from fairserve.platform.console.charts import Chart, chart
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AnyViewer, not_there, scoped
from fairserve.platform.console.lists import ListPart, asked, filters, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.usage_change import WHOLE, usage_change
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.session import ReadSession
from fairserve.platform.reporting.usage import reports
from fairserve.platform.reporting.usage.formats import MAX_ANSWERED_ROWS, document
from fairserve.platform.reporting.usage.schemas import (
    GROUPS,
    Group,
    Sort,
    UsageQuery,
    UsageReport,
    UsageRequest,
    UsageRow,
)
from fairserve.platform.tenancy.readers import knows_app

PAGE = ConsolePage("usage", "Usage", 70, "u")
router = APIRouter(prefix=PAGE.path)

DAYS = 30
"""Default number of days of a report."""
MOST_DAYS = 1000
PER_PAGE = 12
COLUMNS: tuple[tuple[Sort, str], ...] = (
    ("calls", "Calls"),
    ("refused", "Rejected"),
    ("input_tokens", "In"),
    ("cached_tokens", "Cached"),
    ("output_tokens", "Out"),
    ("wasted_tokens", "Wasted"),
    ("cost", "Cost"),
)
"""Sums in the table, by which it can be sorted, with their titles."""


class _Asked(NamedTuple):
    """Scope and query of a report."""

    query: UsageRequest
    ask: partial[UsageReport]
    group: Group


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """Show the report page."""
    found = _asked(request, viewer, session)
    query, ask = found.query, found.ask
    report = ask(query)
    by_day = ask(query.model_copy(update={"group_by": ["day"], "sort": "name", **WHOLE}))
    change = usage_change(query, ask, utc_now().date())
    kept = {name: text for name, text in filters(request).items() if name != "offset"}
    kept.setdefault("from", str(query.first_day))
    unsorted = {name: text for name, text in kept.items() if name != "sort"}
    return page(
        request,
        viewer,
        "usage",
        given=kept,
        group=found.group,
        groups=[name for name in GROUPS if viewer.is_admin or name != "tenant"],
        report=report,
        change=change,
        columns=COLUMNS,
        sort=query.sort,
        unsorted=urlencode(unsorted),
        periods=_periods(utc_now().date()),
        part=ListPart(report.offset, report.limit, len(report.items), report.total, _more(report)),
        place=place(request),
        name=partial(_name, {**report.names, **change.names}, found.group),
        link=partial(_link, found.group, query, viewer),
        charts=_charts(_every_day(by_day.items, query), report.currency),
        downloads=urlencode({**kept, "group_by": found.group, "sort": query.sort}),
    )


@router.get("/report")
def download(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """Return the report as a file or a page for printing."""
    query, ask, group = _asked(request, viewer, session)
    found = document(query, query.format, ask, group, MAX_ANSWERED_ROWS)
    return Response(found.content, media_type=found.media_type, headers=dict(found.headers))


def _asked(request: Request, viewer: Viewer, session: Session) -> _Asked:
    given = filters(request)
    tenant = scoped(viewer, given.get("tenant"), request)
    forced: dict[str, Any] = {"tenant": tenant}
    if "from" not in given:
        forced["from"] = utc_now().date() - timedelta(days=DAYS - 1)
    group: Group = "app" if tenant else "tenant"
    forced["group_by"] = given.get("group_by", group)
    if "sort" not in given and not {"day", "hour"} & set(forced["group_by"].split(",")):
        forced["sort"] = "calls"
    query = asked(request, UsageRequest, PER_PAGE, **forced)
    if query.group_by:
        group = query.group_by[0]
    if tenant is not None:
        reports.reject_tenant_groups(query)
        if query.app is not None and not knows_app(session, tenant, query.app):
            raise not_there(request)
    ask = reports.reporter(session, request.app.state.settings, tenant_id=tenant, app_id=query.app)
    return _Asked(query, ask, group)


def _link(group: Group, query: UsageRequest, viewer: Viewer, row: UsageRow) -> str | None:
    """Return the page of a row's tenant, app or user; a model or a time has none."""
    if group in ("tenant", "app"):
        return f"/console/clients/{group}s/{part(str(getattr(row, group)))}"
    tenant = row.tenant or viewer.tenant_id
    if group == "user" and row.user and tenant and query.app:
        return "/".join(("/console/clients", *map(part, (tenant, query.app, row.user))))
    return None


def _more(report: UsageReport) -> bool:
    return report.offset + len(report.items) < report.total


def _periods(today: date) -> list[tuple[str, date, date]]:
    first = today.replace(day=1)
    before = (first - timedelta(days=1)).replace(day=1)
    return [
        ("today", today, today),
        ("7 days", today - timedelta(days=6), today),
        ("30 days", today - timedelta(days=29), today),
        ("this month", first, today),
        ("last month", before, first - timedelta(days=1)),
    ]


def _name(names: Mapping[str, str], group: Group, row: UsageRow) -> str:
    """Return the name of a row's group."""
    if group == "hour":
        return "" if row.hour is None else row.hour.strftime("%Y-%m-%d %H:%M %z")
    value = str(getattr(row, group))
    return names.get(value, value)


def _every_day(rows: Sequence[UsageRow], query: UsageQuery) -> list[UsageRow]:
    """Return one row per day of the query, including days without usage."""
    found = {row.day: row for row in rows if row.day is not None}
    days = sorted(found)
    first = query.first_day or (days[0] if days else utc_now().date())
    last = query.last_day or max([utc_now().date(), *days[-1:]])
    number = min((last - first).days + 1, MOST_DAYS)
    wanted = [last - timedelta(days=back) for back in reversed(range(number))]
    return [found.get(day) or UsageRow(day=day) for day in wanted]


def _charts(days: Sequence[UsageRow], currency: str) -> dict[str, Chart]:
    time = [charts.at(row.day) for row in days if row.day is not None]
    computed = [row.input_tokens - row.cached_tokens for row in days]
    delays = [
        (f"{what} {name}", [getattr(getattr(row, field), name) for row in days])
        for what, field in (("queue delay", "queue_delay_s"), ("first token", "ttft_s"))
        for name in ("p50", "p99")
    ]
    tokens = [
        ("prompt, computed", [max(0, count) for count in computed]),
        ("prompt, cached", [row.cached_tokens for row in days]),
        ("output", [row.output_tokens for row in days]),
    ]
    calls = [
        ("completed", [row.completed for row in days]),
        ("rejected", [row.refused for row in days]),
        ("failed, cancelled, expired", [_unfinished(row) for row in days]),
    ]
    cost = [(currency, [float(row.cost) for row in days])]
    return {
        "tokens": chart(time, tokens, stacked=True, bars=True, days=True),
        "cost": chart(time, cost, stacked=True, bars=True, days=True),
        "calls": chart(time, calls, stacked=True, bars=True, days=True),
        "delays": chart(time, delays, days=True),
    }


def _unfinished(row: UsageRow) -> int:
    return row.failed + row.cancelled + row.expired
