"""Test usage reports: zones against pandas, quantiles, fairness, pages, formats, and access."""

import base64
import csv
import io
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import get_args

import databases
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import insert, select, text
from usage_histories import START, call_sums, calls, runs

from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.db.identity import App, EndUser, Tenant, TokenProfile
from fairserve.platform.db.usage import UsageCalls
from fairserve.platform.reporting.usage import endpoints, fairness
from fairserve.platform.reporting.usage.fairness import Measure, measure_of
from fairserve.platform.reporting.usage.formats import MAX_ANSWERED_ROWS, document
from fairserve.platform.reporting.usage.reports import report
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import Sort, UsageQuery
from fairserve.platform.server.http.management import TENANT_PLACES
from fairserve.platform.server.settings import Settings

OCTOBER = datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp()


def fill(sessions, records, ended=()):
    with sessions.begin() as session:
        upsert_calls(session, records)
        upsert_interactions(session, list(ended))
    assert roll_up(sessions)


def ask(sessions, tenant_id=None, app_id=None, measure=Measure(), **query):
    with sessions() as session:
        return report(
            session, UsageQuery(**query), tenant_id=tenant_id, app_id=app_id, measure=measure
        )


@databases.ON_POSTGRESQL
@pytest.mark.parametrize(
    ("zone", "start", "first", "last"),
    [
        ("Europe/Berlin", START, "2026-03-28", "2026-03-29"),
        ("Europe/Berlin", OCTOBER, "2026-10-25", "2026-10-25"),
        ("Asia/Kolkata", START, "2026-03-28", "2026-03-29"),
        ("America/St_Johns", OCTOBER, None, "2026-10-25"),
    ],
)
def test_days_and_hours_of_a_zone_agree_with_pandas(sessions, zone, start, first, last):
    records = calls(3, 200, start=start)
    fill(sessions, records)
    times = pd.to_datetime([record.accepted_at for record in records], unit="s", utc=True)
    frame = pd.DataFrame(
        {
            "time": times.tz_convert(zone),
            "tokens": [r.input_tokens + r.system_tokens if r.charged else 0 for r in records],
            "calls": [int(r.charged) for r in records],
        }
    )
    frame["day"] = frame["time"].dt.date
    within = pd.Series(data=True, index=frame.index)
    if first:
        within &= frame["day"] >= pd.Timestamp(first).date()
    within &= frame["day"] <= pd.Timestamp(last).date()
    frame = frame[within]
    bounds = {"from": first, "to": last} if first else {"to": last}

    found = ask(sessions, group_by="day", zone=zone, **bounds)
    expected = frame.groupby("day")[["tokens", "calls"]].sum()
    assert {row.day: (row.input_tokens, row.calls) for row in found.items} == {
        day: tuple(row) for day, row in zip(expected.index, expected.to_numpy(), strict=True)
    }
    assert found.sums.calls == ask(sessions, zone=zone, **bounds).sums.calls == frame["calls"].sum()

    # An hour that the clock repeats is two hours: they begin at different instants.
    local = frame["time"].dt.tz_localize(None)
    shift = local - frame["time"].dt.tz_convert("UTC").dt.tz_localize(None)
    frame = frame.assign(hour=local.dt.floor("h") - shift)
    hourly = frame.groupby("hour")["calls"].sum()
    found = ask(sessions, group_by="hour", zone=zone, limit=1000, **bounds)
    assert {row.hour.astimezone(UTC).replace(tzinfo=None): row.calls for row in found.items} == {
        hour.to_pydatetime(): count for hour, count in hourly.items()
    }
    assert [row.hour for row in found.items] == sorted(row.hour for row in found.items)


@databases.ON_POSTGRESQL
def test_pages_together_are_the_whole_report(sessions):
    fill(sessions, calls(4, 150), runs(4, 30))
    for group_by in ("user,day", "tenant,app,model", "hour", "app"):
        whole = ask(sessions, group_by=group_by, limit=1000)
        parts = []
        while len(parts) < whole.total:
            page = ask(sessions, group_by=group_by, limit=7, offset=len(parts))
            assert (page.total, page.sums) == (whole.total, whole.sums)
            parts += page.items
        assert parts == whole.items
        beyond = ask(sessions, group_by=group_by, offset=5000)
        assert (beyond.items, beyond.total) == ([], whole.total)


@databases.ON_POSTGRESQL
def test_a_table_of_as_many_rows_as_allowed(sessions):
    """A condition for each group exceeds the server's stack, and the parameters of a statement."""
    fill(sessions, [replace(calls(4, 1)[0], tenant="t", charged=True, ttft_s=0.5)])
    table = UsageCalls.__table__
    users = range(1, MAX_ANSWERED_ROWS)
    with sessions.begin() as session:
        one = session.execute(select(table).where(table.c.level == "day_user")).mappings().one()
        session.execute(insert(table), [{**one, "user_id": f"u{number}"} for number in users])
    with sessions() as session:
        query = UsageQuery(group_by="app,user,day")
        ask = partial(report, session, tenant_id="t", app_id=None)
        found = document(query, "csv", ask, "app", MAX_ANSWERED_ROWS).content.decode()
    rows = list(csv.DictReader(io.StringIO(found)))
    assert [row["ttft_s_p50"] for row in rows] == ["0.5"] * MAX_ANSWERED_ROWS


@databases.ON_BOTH
def test_pages_of_a_sorted_report_have_the_largest_groups_first(sessions):
    fill(sessions, calls(4, 150), runs(4, 30))
    by_name = ask(sessions, group_by="user,day", limit=1000)
    for sort in get_args(Sort):
        parts = []
        while len(parts) < by_name.total:
            page = ask(sessions, group_by="user,day", sort=sort, limit=7, offset=len(parts))
            assert page.sums == by_name.sums
            parts += page.items
        assert parts == sorted(by_name.items, key=lambda row: -amount(row, sort))


def amount(row, sort):
    if sort == "name":
        return 0
    return row.input_tokens + row.output_tokens if sort == "tokens" else getattr(row, sort)


@databases.ON_POSTGRESQL
def test_a_report_does_not_depend_on_the_plan_of_its_statements(sessions):
    """PostgreSQL changes a plan when it has analysed a table, and so the order of unsorted rows.

    Shares are sums of fractions, which differ in the last bit if they are added in another order.
    """
    fill(sessions, calls(4, 400, tenants=9))
    found = []
    for plan in ("SET LOCAL enable_hashagg = off", "ANALYZE usage_calls"):
        with sessions.begin() as session:
            session.execute(text(plan))
            query = UsageQuery(group_by="tenant,app", limit=1000)
            found.append(report(session, query, tenant_id=None, app_id=None))
    assert found[0] == found[1]


@databases.ON_POSTGRESQL
def test_quantiles_are_computed_over_all_values(sessions):
    records = calls(5, 1000)
    fill(sessions, records)
    for query in ({}, {"group_by": "app"}, {"user": "Zoe"}, {"group_by": "hour", "model": "m-2"}):
        found = ask(sessions, limit=1000, **query)
        for row in [*found.items, found.sums]:
            app, hour = getattr(row, "app", None), getattr(row, "hour", None)
            values = [
                r.queue_delay_s
                for r in records
                if r.charged
                and r.queue_delay_s is not None
                and (app is None or r.app == app)
                and (hour is None or 0 <= r.accepted_at - hour.timestamp() < 3600)
                and query.get("user", r.user) == r.user
                and query.get("model", r.served_model or r.model) == (r.served_model or r.model)
            ]
            assert row.queue_delay_s.count == len(values)
            if len(values) < 20:
                continue
            for name, rank in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                value = getattr(row.queue_delay_s, name)
                assert abs(np.mean(np.asarray(values) <= value) - rank) < 0.05
    nothing = ask(sessions, user="nobody").sums
    assert (nothing.ttft_s.p50, nothing.ttft_s.count) == (None, 0)


@databases.ON_POSTGRESQL
def test_interactions_waste_and_rejections_are_reported_but_not_by_model(sessions):
    records, ended = calls(6, 300), runs(6, 60)
    fill(sessions, records, ended)
    found = ask(sessions, group_by="tenant")
    for row in found.items:
        mine = [run for run in ended if run.tenant == row.tenant]
        assert row.interactions.model_dump() == {
            state: sum(run.state == state for run in mine)
            for state in ("complete", "aborted", "cancelled", "expired")
        }
        assert row.wasted_by_cause.model_dump() == {
            cause: sum(run.wasted_tokens for run in mine if run.waste_cause == cause)
            for cause in ("throttled", "cancelled", "failed", "expired")
        }
        rejected = [r for r in records if r.tenant == row.tenant and r.outcome == "refused"]
        assert row.refusals == dict(Counter(r.refusal_reason for r in rejected))
    for query in ({"group_by": "model"}, {"model": "m"}):
        row = ask(sessions, **query).items[0]
        assert (row.interactions, row.wasted_by_cause, row.refusals) == (None, None, None)
    exact = call_sums(records, lambda r: 0)[0]
    assert int(ask(sessions).sums.cost.scaleb(9)) == exact["cost"]


@databases.ON_POSTGRESQL
def test_fairness_compares_service_with_weights(sessions):
    now = datetime.now(UTC)
    base = replace(calls(1, 1)[0], outcome="completed", charged=True, accepted_at=START)
    with sessions.begin() as session:
        session.add(Tenant(id="tn_a", name="A", weight=3.0, created_at=now))
        session.add(Tenant(id="tn_b", name="B", created_at=now))
        session.flush()
        session.add(
            App(
                id="x", tenant_id="tn_a", name="X", weight=2.0, calls_per_interaction=1,
                idle_timeout_s=9, created_at=now,
            )
        )  # fmt: skip
        user = {"rpm": None, "blocked": False, "updated_at": now}
        session.add(EndUser(tenant_id="tn_a", external_id="u", weight=4.0, **user))
    fill(
        sessions,
        [
            replace(base, call_id="1", tenant="tn_a", app="x", user="u", service=300.0),
            replace(base, call_id="2", tenant="tn_a", app="y", user="v", service=300.0),
            replace(base, call_id="3", tenant="tn_b", app="z", user="u", service=200.0),
            replace(base, call_id="4", tenant="tn_c", app="q", user="u", service=0.0),
        ],
    )
    found = ask(sessions, group_by="tenant")
    shares = {row.tenant: row.fairness for row in found.items}
    assert shares["tn_c"] is None, "who got nothing asked for nothing, as far as we know"
    assert (shares["tn_a"].service_share, shares["tn_a"].entitled_share) == (0.75, 0.75)
    assert found.jain_index == pytest.approx(1.0)
    found = ask(sessions, group_by="app", tenant_id="tn_a")
    assert [row.fairness.entitled_share for row in found.items] == pytest.approx([8 / 9, 1 / 9])
    assert found.jain_index == pytest.approx(jain(1 / 2 / (8 / 9), 1 / 2 / (1 / 9)))
    assert found.names == {"x": "X"}
    found = ask(sessions, group_by="user,day", tenant_id="tn_a")
    assert [row.fairness.entitled_share for row in found.items] == pytest.approx([8 / 9, 1 / 9])
    assert [row.fairness.service_share for row in found.items] == [0.5, 0.5]
    assert ask(sessions, group_by="app,user").jain_index is None


def jain(x, y):
    return (x + y) ** 2 / (2 * (x * x + y * y))


@databases.ON_POSTGRESQL
def test_fairness_follows_levels_and_the_cost_of_the_system(sessions):
    """Compare a tenant of two apps, one of them with three users, with another tenant."""
    now = datetime.now(UTC)
    typical = {"big": 1000, "small": 100}
    base = replace(
        calls(1, 1)[0], outcome="completed", charged=True, accepted_at=START, model="m",
        served_model="m", cached_tokens=0, system_tokens=0, output_tokens=0,
    )  # fmt: skip
    with sessions.begin() as session:
        session.add(Tenant(id="tn_a", name="A", created_at=now))
        session.flush()
        for app, tokens in typical.items():
            session.add(
                App(
                    id=app, tenant_id="tn_a", name=app, calls_per_interaction=2, idle_timeout_s=9,
                    created_at=now, profile_mode="declared",
                    stages=[
                        TokenProfile(stage=1, input_tokens=tokens, system_tokens=0, output_tokens=0)
                    ],
                )
            )  # fmt: skip
    rows = [("small", "s1"), ("small", "s2"), ("small", "s3"), ("big", "b"), ("big", "b")]
    fill(
        sessions,
        [
            replace(
                base, call_id=f"{n}", tenant="tn_a", app=app, user=user,
                input_tokens=typical[app], extend_tokens=typical[app], service=float(typical[app]),
            )
            for n, (app, user) in enumerate(rows)
        ]
        + [replace(base, call_id="o", tenant="tn_o", app="o", user="o", input_tokens=9, service=9)],
    )  # fmt: skip

    def shares(found, name):
        return {
            getattr(row, name): (row.fairness.service_share, row.fairness.entitled_share)
            for row in found.items
        }

    with sessions() as session:
        calls_of_wsc = measure_of(session, Settings())
    assert calls_of_wsc.wsc is not None
    by_app = {"group_by": "app", "tenant_id": "tn_a"}
    assert shares(ask(sessions, **by_app), "app") == {
        "small": pytest.approx((300 / 2300, 3 / 4)),
        "big": pytest.approx((2000 / 2300, 1 / 4)),
    }
    found = ask(sessions, measure=calls_of_wsc, **by_app)
    assert shares(found, "app") == {
        "small": pytest.approx((3 / 5, 3 / 4)),
        "big": pytest.approx((2 / 5, 1 / 4)),
    }
    assert found.jain_index == pytest.approx(jain(0.6 / 0.75, 0.4 / 0.25))
    found = ask(sessions, measure=calls_of_wsc, group_by="app,day", tenant_id="tn_a")
    assert [row.fairness for row in found.items] == [None, None], (
        "it depends on the users of each day"
    )
    with sessions.begin() as session:
        session.get(Tenant, "tn_a").levels = "tenant > app > user"
    for day in ("", ",day"):
        by_app["group_by"] = f"app{day}"
        found = ask(sessions, measure=calls_of_wsc, **by_app)
        assert shares(found, "app") == {
            "small": pytest.approx((3 / 5, 1 / 2)),
            "big": pytest.approx((2 / 5, 1 / 2)),
        }
    found = ask(sessions, measure=calls_of_wsc, group_by="user", tenant_id="tn_a")
    assert shares(found, "user")["s1"] == pytest.approx((1 / 5, 1 / 6))
    found = ask(sessions, group_by="tenant", measure=Measure(levels="user"))
    assert shares(found, "tenant") == {
        "tn_a": pytest.approx((2300 / 2309, 1 / 2)),  # one client at the levels of its tenant
        "tn_o": pytest.approx((9 / 2309, 1 / 2)),
    }
    with sessions.begin() as session:
        session.get(Tenant, "tn_a").levels = None
    found = ask(sessions, group_by="tenant", measure=Measure(levels="user"))
    assert shares(found, "tenant")["tn_a"] == pytest.approx((2300 / 2309, 4 / 5))


def test_too_many_owners_have_no_shares(sessions, monkeypatch):
    ran = {"outcome": "completed", "charged": True, "service": 9.0}
    base = replace(calls(1, 1)[0], tenant="tn", app="a", **ran)
    fill(sessions, [replace(base, call_id=f"{n}", user=f"u{n}") for n in range(3)])
    whole = ask(sessions, group_by="user", tenant_id="tn")
    assert whole.jain_index == pytest.approx(1)
    monkeypatch.setattr(fairness, "MAX_OWNERS", 2)
    found = ask(sessions, group_by="user", tenant_id="tn")
    assert found.jain_index is None
    assert [row.fairness for row in found.items] == [None] * 3
    assert ask(sessions, group_by="tenant").items[0].fairness is not None, "one holder"
    for row in whole.items:
        row.fairness = None
    assert found.items == whole.items


BARE = ["=cmd|' /C calc'!A0", "+1", "-1", "@x"]
"""Texts that a spreadsheet treats as formulas."""
BEHIND_SPACE = [
    "\t=1",
    "\r=1",
    "\n+1",
    "\r\n-1",
    " =1",
    " \t@x",
    "\u00a0=1",
    "\uff1d1",
    "\t",
    "\rx",
]
"""The same texts behind characters that spreadsheets drop, or that begin a new cell."""
FORMULAS = [*BARE, *BEHIND_SPACE]
EVIL = [*FORMULAS, '<script>alert("1")</script>', 'a,"b"\u2028', "$x$"]


def formula_calls(tenant, app):
    ran = {"outcome": "completed", "charged": True, "service": 9.0, "queue_delay_s": 0.5}
    base = replace(calls(1, 1)[0], tenant=tenant, app=app, **ran)
    return [
        replace(
            base, call_id=str(number), user=user, cost=10**9 + number, accepted_at=START + number
        )
        for number, user in enumerate(EVIL)
    ]


def raw(management, key, path="/v1/usage", status=200, **query):
    headers = {"Authorization": f"Bearer {key}"}
    answer = management.client.get(path, params=query, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


def test_every_format_has_the_same_figures(management):
    tenant = management.new_tenant("=acme")
    app = management.new_app(tenant, "<b>chat</b>")
    sessions = management.state.session_factory
    fill(sessions, formula_calls(tenant["id"], app["id"]), [
        replace(run, tenant=tenant["id"], app=app["id"]) for run in runs(1, 5)
    ])  # fmt: skip
    key = tenant["api_key"]
    query = {"group_by": "app,user,day"}
    plain = raw(management, key, **query).json()
    assert (plain["currency"], plain["zone"]) == ("USD", "UTC")
    assert plain["as_of"] is not None
    assert all(isinstance(row["cost"], float) for row in plain["items"])

    text = raw(management, key, format="csv", **query)
    assert text.headers["content-disposition"] == 'attachment; filename="usage.csv"'
    rows = list(csv.DictReader(io.StringIO(text.text, newline="")))
    assert [int(row["calls"]) for row in rows] == [row["calls"] for row in plain["items"]]
    users = [row["user"] for row in rows]
    assert {user[1:] for user in users if user.startswith("'")} == set(FORMULAS)
    assert {user.removeprefix("'") for user in users} == {row["user"] for row in plain["items"]}
    assert sorted(row["cost"] for row in rows if row["cost"] != "0.000000000")[1] == "1.000000001"

    table = pq.read_table(
        io.BytesIO(raw(management, key, format="parquet", group_by="app,user,hour").content)
    )
    assert str(table.schema.field("cost").type) == "decimal128(38, 9)"
    assert str(table.schema.field("hour").type) == "timestamp[us, tz=UTC]"
    assert set(table["user"].to_pylist()) >= set(EVIL)
    assert sum(table["calls"].to_pylist()) == plain["sums"]["calls"]
    assert sum(table["cost"].to_pylist()) * 10**9 == sum(10**9 + n for n in range(len(EVIL)))

    page = raw(management, key, format="html", **query)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "&lt;b&gt;chat&lt;/b&gt;" in page.text
    page = raw(management, key, format="html", group_by="user")
    assert page.text.count("data:image/svg+xml;base64,") == 4
    empty = raw(management, key, format="html", user="nobody")
    assert "<table" not in empty.text


def test_the_axes_of_a_page_span_its_period(management):
    tenant = management.new_tenant("acme")
    # All calls are of 27 March 2026.
    fill(management.state.session_factory, formula_calls(tenant["id"], "app"))
    for period, ticks in (
        ({"from": "2026-03-25", "to": "2026-03-28"}, {"25", "26", "27", "28"}),
        ({"to": "2026-06-30"}, {"Apr", "May", "Jun"}),
        ({"from": "0001-01-01", "to": "9999-12-31"}, {"2001", "8001"}),
    ):
        page = raw(management, tenant["api_key"], format="html", group_by="day", **period).text
        drawn = pictures(page)
        for svg in (drawn[0], drawn[-1]):  # tokens and durations
            assert ticks <= set(re.findall("<!-- (.+?) -->", svg)), period


def pictures(page):
    return [
        base64.b64decode(picture).decode()
        for picture in re.findall("data:image/svg.xml;base64,([A-Za-z0-9+/=]+)", page)
    ]


def paths(svg):
    """Return the drawn shapes of a picture, without their ids, which are random."""
    return re.findall(r'<path d="([^"]+)"', svg)


def test_plots_have_every_day_in_order_and_the_largest_groups(management):
    tenant = management.new_tenant("acme")
    sessions = management.state.session_factory
    one = replace(calls(4, 1)[0], tenant=tenant["id"], app="a", charged=True, ttft_s=0.5)
    users = [f"u{number:04}" for number in range(1001)]
    costs = [3, 1, 4, 2]
    fill(sessions, [
        replace(
            one,
            call_id=f"c{number}",
            user=user,
            accepted_at=START + 86_400 * (number % len(costs)),
            ttft_s=costs[number % len(costs)],
            cost=10**9 * costs[number % len(costs)] * (1 + 50 * (user == users[-1])),
        )
        for number, user in enumerate(users)
    ])  # fmt: skip
    by_name, by_cost = (
        pictures(raw(management, tenant["api_key"], format="html", group_by="user", sort=sort).text)
        for sort in ("name", "cost")
    )
    assert [paths(one) for one in by_name] == [paths(one) for one in by_cost]
    assert f"<!-- {users[-1]} -->" in by_name[1], "the most expensive one"


def test_too_many_rows_for_a_table_are_rejected(management, monkeypatch):
    tenant = management.new_tenant("acme")
    fill(management.state.session_factory, formula_calls(tenant["id"], "app"))
    monkeypatch.setattr("fairserve.platform.reporting.usage.formats.MAX_ROWS", 3)
    for format in ("csv", "parquet"):
        query = {"group_by": "user", "format": format}
        answer = management.call(tenant["api_key"], "GET", "/v1/usage", status=400, **query)
        assert "restrict it with" in answer["error"]["message"]


def test_a_table_over_http_is_shorter_than_an_exported_one(management, monkeypatch):
    tenant = management.new_tenant("acme")
    fill(management.state.session_factory, formula_calls(tenant["id"], "app"))
    monkeypatch.setattr("fairserve.platform.reporting.usage.endpoints.MAX_ANSWERED_ROWS", 3)
    answer = management.call(
        tenant["api_key"], "GET", "/v1/usage", status=400, group_by="user", format="csv"
    )
    assert "request an export" in answer["error"]["message"]
    management.call(
        tenant["api_key"], "POST", "/v1/usage/exports", status=202, group_by="user", format="csv"
    )


def test_concurrent_reports_of_a_tenant_are_bounded(management, monkeypatch):
    """They run in the places of requests that make no call; more of them wait."""
    tenant, other = management.new_tenant("acme"), management.new_tenant("other")
    begun, go_on = threading.Semaphore(0), threading.Event()
    real = endpoints.document

    def held(*args):
        begun.release()
        assert go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(endpoints, "document", held)
    with ThreadPoolExecutor(TENANT_PLACES + 2) as threads:
        making = [
            threads.submit(raw, management, tenant["api_key"]) for _ in range(TENANT_PLACES + 1)
        ]
        try:
            assert all(begun.acquire(timeout=60) for _ in range(TENANT_PLACES))
            making.append(threads.submit(raw, management, other["api_key"]))
            assert begun.acquire(timeout=60), "the report of another tenant begins"
            assert not begun.acquire(blocking=False), "one more of the tenant waits"
        finally:
            go_on.set()
    assert {each.result().status_code for each in making} == {200}


def test_invalid_queries_are_rejected(management):
    tenant = management.new_tenant("acme")
    fill(management.state.session_factory, [
        replace(call, call_id=str(number), tenant=tenant["id"])
        for number, start in enumerate((START, START + 200 * 86_400))
        for call in calls(1, 1, start=start)
    ])  # fmt: skip
    for query, param in (({"zone": "Mars/Base"}, "zone"), ({"group_by": "hour"}, "from")):
        answer = management.call(tenant["api_key"], "GET", "/v1/usage", status=400, **query)
        assert answer["error"]["param"] == param
    for name, value in (("format", "pdf"), ("model", "\x00"), ("zone", "x" * 65)):
        key = tenant["api_key"]
        management.rejected(key, "GET", "/v1/usage", param=name, **{name: value})


@databases.ON_POSTGRESQL
def test_interactions_are_listed_newest_first_to_their_owner_only(management):
    one, other = management.new_tenant("one"), management.new_tenant("other")
    app, foreign = management.new_app(one), management.new_app(other)
    sibling = management.new_app(one, "sibling")
    run = replace(runs(1, 1)[0], tenant=one["id"], app=app["id"], user="u", state="complete")
    call = replace(
        calls(1, 1)[0], tenant=one["id"], app=app["id"], outcome="completed", charged=True,
        input_tokens=5, system_tokens=0, service=9.0, cost=1_500_000_000,
    )  # fmt: skip
    records = [
        replace(
            run, interaction_id=f"r{n}", opened_at=START + n, state="aborted" if n else "complete"
        )
        for n in range(3)
    ]
    fill(
        management.state.session_factory,
        [
            replace(call, call_id="a", interaction_id="r1"),
            replace(call, call_id="b", interaction_id="r1"),
            replace(call, call_id="c", interaction_id="r1", app=foreign["id"], tenant=other["id"]),
            replace(call, call_id="d", interaction_id="r1", charged=False, cost=0),
        ],
        [
            *records,
            replace(run, interaction_id="r1", tenant=other["id"], app=foreign["id"]),
            replace(run, interaction_id="r9", app=sibling["id"], user="w", state="expired"),
        ],
    )
    path = "/v1/usage/interactions"
    found = management.call(app["api_key"], "GET", path)
    assert [item["interaction"] for item in found["items"]] == ["r2", "r1", "r0"]
    middle = found["items"][1]
    assert (middle["input_tokens"], middle["service"], middle["cost"]) == (10, 18.0, 3.0)
    for query, names in (
        ({"state": "complete"}, ["r0"]),
        ({"app": app["id"], "limit": 1, "offset": 1}, ["r1"]),
        ({"user": "v"}, []),
        ({"user": "w"}, ["r9"]),
        ({"user": "u", "from": "2026-03-28"}, []),
        ({"user": "u", "from": "2026-03-28", "zone": "Asia/Tokyo"}, ["r2", "r1", "r0"]),
    ):
        found = management.call(one["api_key"], "GET", path, **query)
        assert [item["interaction"] for item in found["items"]] == names, query
    management.call(app["api_key"], "GET", path, status=404, app=foreign["id"])
    management.call(one["api_key"], "GET", path, status=404, tenant=other["id"])
    management.call(one["api_key"], "GET", "/admin/usage/interactions", status=403)
    everything = management.call(management.admin_key, "GET", "/admin/usage/interactions")
    assert everything["total"] == 5


@databases.ON_POSTGRESQL
def test_reports_contain_no_data_of_other_tenants(management):
    one, other = management.new_tenant("one"), management.new_tenant("other")
    app = management.new_app(one)
    records = [
        replace(call, tenant=tenant, app=owned, call_id=f"{tenant}{call.call_id}")
        for call in calls(2, 60)
        for tenant, owned in ((one["id"], app["id"]), (other["id"], "app_other"))
    ]
    sessions = management.state.session_factory
    fill(sessions, records)
    roll_up(sessions)
    groups = ("app", "user,day", "model,hour", "")
    for format, group_by in [*product(("json", "csv"), groups), ("html", "app")]:
        query = {"format": format, "group_by": group_by}
        for key in (one["api_key"], app["api_key"]):
            text = raw(management, key, **query).text
            assert "app_other" not in text
            assert other["id"] not in text
    mine = raw(management, app["api_key"]).json()["sums"]["calls"]
    assert mine == sum(record.charged for record in records) // 2
