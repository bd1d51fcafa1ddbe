"""The usage page compares with the period before, sorts, links its rows, and has a row of totals."""

import re
from datetime import UTC, datetime

import pytest
from call_records import call_record

from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.reporting.usage.rollups import roll_up

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC).timestamp()
BEFORE = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()
PERIOD = "from=2026-03-16&to=2026-03-22"


@pytest.fixture
def apps(management):
    """Return a tenant's apps by name, with calls in the period and in the one before."""
    tenant = management.new_tenant("acme")
    found = {name: management.new_app(tenant, name) for name in ("grown", "gone", "same")}
    tokens = {"grown": (100, 300), "gone": (900, 0), "same": (50, 50)}
    records = [
        call_record(
            f"{name}-{at}",
            tenant=tenant["id"],
            app=found[name]["id"],
            user="ann",
            outcome="completed",
            accepted_at=at,
            ended_at=at + 1,
            input_tokens=each,
            output_tokens=0,
        )
        for name, amounts in tokens.items()
        for at, each in zip((BEFORE, NOW), amounts, strict=True)
        if each
    ]
    sessions = management.state.session_factory
    with sessions.begin() as session:
        upsert_calls(session, records)
    assert roll_up(sessions)
    management.client.post("/console/sign-in", data={"key": tenant["api_key"]})
    return found


def rows(page, label):
    """Return the cells of the rows of a table, as texts."""
    table = re.search(rf'aria-label="{label}">(.*?)</table>', page, re.DOTALL)[1]
    return [
        [
            " ".join(re.sub("<[^>]*>", " ", cell).split())
            for cell in re.findall(CELL, row, re.DOTALL)
        ]
        for row in re.findall("<tr>(.*?)</tr>", table, re.DOTALL)[1:]
    ]


CELL = r"<t[hd][^>]*>(.*?)</t[hd]>"


def test_usage_is_compared_with_the_period_before(management, apps):
    page = management.client.get(f"/console/usage?{PERIOD}&sort=input_tokens").text
    assert "Compared with 2026-03-09 to 2026-03-15" in page
    assert rows(page, "Biggest changes by app") == [
        ["gone", "900", "0", "-900", "-100 %"],
        ["grown", "100", "300", "+ 200", "+200 %"],
    ]
    listed = rows(page, "Usage by app")
    assert [row[0] for row in listed] == ["grown", "same", "All 2"]
    assert [row[3] for row in listed] == ["300 +200 %", "50 unchanged", "350 -67 %"]
    assert f'href="/console/clients/apps/{apps["grown"]["id"]}"' in page


def test_a_table_is_sorted_by_its_columns(management, apps):
    def names(sort):
        page = management.client.get(f"/console/usage?{PERIOD}&sort={sort}").text
        return [row[0] for row in rows(page, "Usage by app")][:-1]

    by_id = sorted(("grown", "same"), key=lambda name: apps[name]["id"])
    assert names("name") == by_id
    assert names("input_tokens") == ["grown", "same"]
    assert names("calls") == by_id, "equal sums are ordered by name"
    assert management.client.get("/console/usage?sort=planet").status_code == 400


def test_the_earliest_period_has_none_before_it(management, apps):
    page = management.client.get("/console/usage?from=0001-01-01&to=2026-03-22")
    assert page.status_code == 200
    assert "Biggest changes" in page.text
