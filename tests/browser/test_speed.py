"""The list of runs stays cheap with 100,000 runs of 10,000 clients: bounded work, by an index."""

import httpx
import pytest
from live_server import LiveServer
from many_clients import APP, TENANT, USER, fill
from sqlalchemy import event, text

from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.interactions import repository
from fairserve.platform.throttling import events
from fairserve.platform.throttling.schemas import EventQuery

RUNS = 100_000
MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("many")
    (found / "data").mkdir()
    fill(found / "data" / "fairserve.sqlite3", runs=RUNS, rollups=False)
    return found


@pytest.fixture(scope="module")
def sessions(folder):
    engine = connect(f"sqlite:///{folder / 'data' / 'fairserve.sqlite3'}")
    yield session_factory(engine)
    engine.dispose()


@pytest.fixture
def plans(sessions):
    """The plans of all SELECT statements of a function, one for each."""
    engine = sessions.kw["bind"]

    def plans_of(ask):
        seen = []

        def note(_connection, _cursor, statement, parameters, *_):
            if statement.startswith("SELECT"):
                seen.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", note)
        try:
            ask()
        finally:
            event.remove(engine, "before_cursor_execute", note)
        found = []
        with engine.connect() as connection:
            for statement, parameters in seen:
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                found.append([row[-1] for row in rows])
        return found

    return plans_of


@pytest.mark.parametrize("tenant", [None, TENANT])
@pytest.mark.parametrize("app", [None, APP])
@pytest.mark.parametrize("more", [{}, {"user": USER}, {"state": "aborted"}])
def test_an_index_gives_the_runs_of_a_page_in_order(plans, sessions, tenant, app, more):
    rows = []

    def ask():
        rows[:] = repository.latest(sessions, tenant, app, limit=51, offset=0, **more)

    (plan,) = plans(ask)
    assert rows
    for step in plan:
        assert "USING INDEX" in step or "PART OF ORDER BY" in step, plan
    assert any("opened_at" in step for step in plan), plan


def test_a_look_for_news_reads_one_entry_of_an_index(plans, sessions):
    (plan,) = plans(lambda: repository.last_end(sessions))
    assert "SEARCH" in plan[0]
    assert "ended_at" in plan[0]


@pytest.mark.parametrize("tenant", [None, TENANT])
def test_an_index_gives_the_refusals_of_a_page_in_order(plans, sessions, tenant):
    def ask():
        with sessions() as session:
            assert events.listed(session, EventQuery(limit=50), tenant_id=tenant, app_id=None)

    (plan,) = plans(ask)
    assert not [step for step in plan if step.startswith("SCAN") and "USING INDEX" not in step]


def test_the_calls_of_a_run_are_found_by_an_index(plans, sessions):
    (plan,) = plans(lambda: repository.calls(sessions, TENANT, APP, "run_7"))
    assert "interaction_id=" in plan[0], plan


def test_pages_have_a_bounded_size(folder, sessions):
    with sessions() as session:
        assert session.scalar(text("SELECT count(*) FROM interactions")) == RUNS
    paused = {"FAIRSERVE_USAGE_ROLLUP_INTERVAL_S": "3600"}
    with LiveServer(folder, workers=1, env=paused) as server, httpx.Client(timeout=60) as client:
        client.base_url = server.url
        client.post("/console/sign-in", data={"key": server.admin_key})
        for path, rows in [
            ("/console/interactions", 50),
            (f"/console/interactions?user={USER}", 10),
            (f"/console/interactions?tenant={TENANT}&offset=1000", 50),
            ("/console/cluster", 7),
        ]:
            page = client.get(path)
            assert page.status_code == 200, page.text
            assert page.text.count("<tr id=") + page.text.count("<tr>\n  <th") >= min(rows, 6)
            assert len(page.content) < MOST_BYTES, path
