"""Lists of runs and rejections stay cheap for any number: bounded pages, each found by an index.

SQLite plans without statistics of the rows, so a few thousand rows are representative.
"""

from unittest import mock

import httpx
import pytest
from many_clients import APP, TENANT, USER, fill
from page_server import PageServer
from sqlalchemy import event

from fairserve.platform.background.jobs import jobs
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.serving.interactions import repository
from fairserve.platform.tuning import events
from fairserve.platform.tuning.schemas import EventQuery

RUNS, CLIENTS = 2_500, 60
MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("many")
    (found / "data").mkdir()
    fill(found / "data" / "fairserve.sqlite3", runs=RUNS, clients=CLIENTS, rollups=False)
    return found


@pytest.fixture(scope="module")
def sessions(folder):
    engine = connect(f"sqlite:///{folder / 'data' / 'fairserve.sqlite3'}")
    yield session_factory(engine)
    engine.dispose()


@pytest.fixture
def plans(sessions):
    """Return a function that returns the plans of all SELECT statements of a call."""
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
def test_an_index_orders_the_runs_of_a_page(plans, sessions, tenant, app, more):
    rows = []

    def ask():
        rows[:] = repository.latest(sessions, tenant, app, limit=51, offset=0, **more)

    (plan,) = plans(ask)
    assert rows
    for step in plan:
        assert "USING INDEX" in step or "PART OF ORDER BY" in step, plan
    assert any("opened_at" in step for step in plan), plan


def test_a_poll_for_changes_reads_one_entry_of_an_index(plans, sessions):
    (plan,) = plans(lambda: repository.last_end(sessions))
    assert "SEARCH" in plan[0]
    assert "ended_at" in plan[0]


@pytest.mark.parametrize("tenant", [None, TENANT])
def test_an_index_orders_the_rejections_of_a_page(plans, sessions, tenant):
    def ask():
        with sessions() as session:
            assert events.listed(session, EventQuery(limit=50), tenant_id=tenant, app_id=None)

    (plan,) = plans(ask)
    assert not [step for step in plan if step.startswith("SCAN") and "USING INDEX" not in step]


def test_the_calls_of_a_run_are_found_by_an_index(plans, sessions):
    (plan,) = plans(lambda: repository.calls(sessions, TENANT, APP, "run_7"))
    assert "interaction_id=" in plan[0], plan


@pytest.fixture(scope="module")
def operator(folder):
    """Return an operator's session without a browser, at a server over the many runs."""
    # Rollups of these rows would only keep the database busy.
    with (
        mock.patch.object(jobs, "ROLLUP_INTERVAL_S", 3600.0),
        PageServer(folder) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        client.post("/console/sign-in", data={"key": server.admin_key})
        yield client


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("/console/interactions", 50),
        (f"/console/interactions?user={USER}", 42),
        (f"/console/interactions?tenant={TENANT}&offset=60", 50),
        ("/console/refusals", 50),
    ],
)
def test_pages_have_a_bounded_size(operator, path, rows):
    page = operator.get(path)
    assert page.status_code == 200, page.text
    assert page.text.count("<tr id=") == rows
    assert len(page.content) < MOST_BYTES
