"""Reports on a recorded day from the simulator's ledger equal independent sums, to the token."""

import gzip
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import databases
import pandas
import pytest
from shared_traces import shared_trace
from simulated_ledger import SimulatedLedger
from sqlalchemy import func, select

from fairserve.benchmarks.simulate.job import SimulationJob, run_job
from fairserve.benchmarks.traces import assignment
from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.cost_model import cost_model
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.reporting.usage.reconcile import compare
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling.metrics import Windows
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.quotas.price import TokenPrice

BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
"""Start that spans two UTC days and, in Berlin, the night of a missing hour."""
TENANTS = 20
STRETCH = 86_400 / 3502
INPUT, OUTPUT = 250_000, 1_500_000
"""Prices in micro-units per million tokens: 250 and 1,500 nano-units per token."""


@pytest.fixture(
    scope="module", params=[13, pytest.param(1, marks=pytest.mark.deep)], ids=["short", "whole"]
)
def day(request, tmp_path_factory):
    """Return every 13th recorded call in a table with test tenants, and the simulator's ledger.

    The deep test takes all calls.
    """
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    with gzip.open(shared_trace("azure_llm_2023_conv.csv.gz"), "rt", newline="") as lines:
        header, *calls = lines
    path.write_text("".join([header, *calls[:: request.param]]), newline="")
    trace = assignment.scale_time(read_trace(path), STRETCH)
    trace = assignment.assign_users(trace, users=400, skew=0.8, seed=3)
    trace = assignment.assign_tenants(trace, tenants=TENANTS, seed=3)
    prices = PriceBook([("*", 0.0, TokenPrice(INPUT, INPUT, OUTPUT, "price_1"))])
    ledger = SimulatedLedger("sim", BEGIN, prices)
    costs = cost_model("a100-llama3-8b")
    rare = Windows(step_s=3600.0)  # the figures of the simulation are not used here
    job = SimulationJob("day", trace, SYSTEMS["fairserve"], costs, ReplayOptions(2), windows=rare)
    run_job(job, watcher=ledger)
    table = pandas.read_csv(path)
    assert len(table) == len(trace)
    owners = pandas.DataFrame(
        {"tenant": each.tenant, "user": each.user, "arrival_s": each.arrival_s}
        for each in trace.interactions
    )
    table = pandas.concat([table, owners], axis=1)
    table["at"] = pandas.to_datetime(BEGIN.timestamp() + table.arrival_s, unit="s", utc=True)
    table["cost"] = table.ContextTokens * INPUT // 1000 + table.GeneratedTokens * OUTPUT // 1000
    return table, ledger


def sums(table, *groups):
    """Return calls, tokens and nano-units by group, computed with pandas alone."""
    grouped = table.groupby(list(groups), sort=True)
    return {
        key if isinstance(key, tuple) else (key,): (
            len(rows),
            int(rows.ContextTokens.sum()),
            int(rows.GeneratedTokens.sum()),
            int(rows.cost.sum()),
        )
        for key, rows in grouped
    }


def reported(management, *groups, **query):
    """Return the same sums from the report, page by page."""
    found, offset = {}, 0
    while True:
        page = management.call(
            management.admin_key,
            "GET",
            "/admin/usage",
            group_by=",".join(groups),
            limit=500,
            offset=offset,
            **query,
        )
        for row in page["items"]:
            key = tuple(row[group] for group in groups)
            assert key not in found
            found[key] = (
                row["calls"],
                row["input_tokens"],
                row["output_tokens"],
                round(row["cost"] * 10**9),
            )
        offset += 500
        if offset >= page["total"]:
            return found, page


@databases.ON_POSTGRESQL
def test_reports_of_the_day_equal_independent_sums_to_the_token(day, management):
    table, ledger = day
    ledger.write(management.state.session_factory)
    check_totals(table, management)
    for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
        check_days_and_hours(table, management, zone)
    check_rows(table, management.state.session_factory)


def check_totals(table, management):
    for groups in (("tenant",), ("tenant", "user")):
        found, page = reported(management, *groups)
        assert found == sums(table, *groups)
        assert page["sums"]["calls"] == page["sums"]["completed"] == len(table)
        assert page["sums"]["output_tokens"] == table.GeneratedTokens.sum()
        assert round(page["sums"]["cost"] * 10**9) == table.cost.sum()
        assert page["sums"]["interactions"]["complete"] == len(table)
    assert len({tenant for tenant, _ in found}) == TENANTS


def check_days_and_hours(table, management, zone):
    local = table["at"].dt.tz_convert(ZoneInfo(zone))
    days = sums(table.assign(day=local.dt.strftime("%Y-%m-%d")), "tenant", "day")
    assert reported(management, "tenant", "day", zone=zone)[0] == days
    hours, _ = reported(management, "hour", zone=zone)
    begins = [at.timestamp() // 60 * 60 - at.minute * 60 for at in local]
    by_hour = {datetime.fromisoformat(hour).timestamp(): row for (hour,), row in hours.items()}
    expected = sums(table.assign(hour=begins), "hour")
    assert by_hour == {begin: row for (begin,), row in expected.items()}


def check_rows(table, sessions):
    compared = compare(sessions, None, None)
    assert (compared.marked, compared.differences) == (0, [])
    assert compared.compared == 2 * TENANTS
    with sessions() as session:
        rows = session.scalar(select(func.count()).select_from(LedgerCall))
        cost = session.scalar(select(func.sum(LedgerCall.cost)))
    assert (rows, int(cost)) == (len(table), table.cost.sum())
