"""Pages of an operator in each state of a server: they fit wide and narrow windows, and are accessible.

The state under overload is that of ``test_screenshots``. The pictures are written to the folder of
``FAIRSERVE_SCREENSHOTS``.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
from chromium import NARROW, WIDE
from client_pages import call, hold, path_of
from database_proxy import proxied
from gateway_server import ChildServer
from many_clients import APP, TENANT, USER, fill
from page_server import PageServer
from pictures import keep, picture_of
from postgres_process import new_database, new_template, running_postgres
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.platform.background.jobs import jobs

WINDOWS = [(WIDE, False), (NARROW, True)]
LISTS = ("overview", "alarms", "clients", "interactions", "cluster")
CLIENTS, RUNS = 10_000, 10_000
LARGE = {"stages": [{"input_tokens": 3000, "output_tokens": 300}], "calls_per_interaction": 3}
"""Profile of runs of which a worker's memory holds one."""


def lists(*names):
    return {name: f"/console/{name}" for name in names or LISTS}


def run_of(app, run):
    return f"/console/interactions/{app['tenant_id']}/{app['id']}/{run}"


@contextmanager
def empty(folder):
    """Yield a server without a tenant."""
    with PageServer(folder) as server:
        yield server, lists(*LISTS, "usage", "refusals", "audit"), lambda: None


@contextmanager
def healthy(folder):
    """Yield a server after a call."""
    with PageServer(folder) as server:
        app = server.new_app(name="research")
        call(server, app["api_key"], "ann", extra_headers={"X-Interaction-Id": "one"})
        server.sample()
        yield server, lists() | {"run": run_of(app, "one")}, lambda: None


@contextmanager
def held(folder):
    """Yield a server with a run that waits for memory."""
    with PageServer(folder, kv_blocks=256) as server:
        app = server.new_app(name="research", profile=LARGE)
        for number in range(2):
            hold(server, app["api_key"], f"user-{number}", f"active-{number}", words=30)
        headers = {"X-Interaction-Id": "waits"}
        server.threads.submit(call, server, app["api_key"], "ann", "hi", extra_headers=headers)
        held_runs = "/admin/interactions?state=held"
        server.wait_for(held_runs, server.admin_key, lambda found: found["items"])
        server.sample()
        yield server, lists() | {"run": run_of(app, "waits")}, lambda: None
        server.call(app["api_key"], "DELETE", "/v1/interactions/waits")


@contextmanager
def worker_lost(folder):
    """Yield a server and the function that ends one of its two workers."""
    with PageServer(folder) as server:
        app = server.new_app(name="research")
        call(server, app["api_key"], "ann")

        def lose():
            server.workers[0].close()
            eventually(lambda: _state_of_w0(server) != "serving", "w0 serves")
            server.sample()

        yield server, lists(), lose


def _state_of_w0(server):
    workers = server.call(server.admin_key, "GET", "/admin/cluster/workers")["items"]
    return next(each["state"] for each in workers if each["id"] == "w0")


@contextmanager
def database_away(folder):
    """Yield a server and the function that cuts its database off."""
    with (
        running_postgres() as postgres,
        proxied(new_database(postgres, new_template(postgres))) as database,
        PageServer(folder, database_url=database.url, secret_key="s" * 40) as server,
    ):
        app = server.new_app(name="research")
        call(server, app["api_key"], "ann")
        server.call(app["api_key"], "POST", "/v1/interactions", {"id": "run-7", "user": "ann"})
        pages = {
            "tenant": f"/console/clients/tenants/{app['tenant_id']}",
            "app": f"/console/clients/apps/{app['id']}",
            "client": path_of(app, "ann"),
            "run": run_of(app, "run-7"),
            "ended-run": run_of(app, "ended"),
        }
        yield server, lists() | pages, database.cut


@contextmanager
def many(folder):
    """Yield a server with the runs of very many clients in its database."""
    (folder / "data").mkdir()
    fill(folder / "data" / "fairserve.sqlite3", runs=RUNS, clients=CLIENTS, rollups=False)
    # Rollups of these rows would only keep the database busy.
    with mock.patch.object(jobs, "ROLLUP_INTERVAL_S", 3600.0), PageServer(folder) as server:
        pages = {
            "tenants": "/console/clients/tenants",
            "apps": "/console/clients/apps",
            "run": run_of({"tenant_id": TENANT, "id": APP}, "run_7"),
            "runs-of-a-user": f"/console/interactions?user={USER}",
        }
        yield server, lists("interactions", "refusals") | pages, lambda: None


SIGNS = {
    worker_lost: ".incident:has-text('w0')",
    database_away: "#status .degraded",
}
"""Selectors of what the page Now shows once a state has begun."""


@pytest.mark.deep
@pytest.mark.parametrize("state", [empty, healthy, held, worker_lost, database_away, many])
def test_each_state_is_drawn(browser, tmp_path, state):
    with state(tmp_path) as (server, pages, begin), ExitStack() as open_visits:
        visits = [
            open_visits.enter_context(browser.visit(server.url, size=size, dark=dark))
            for size, dark in WINDOWS
        ]
        for visit in visits:
            visit.sign_in(server.admin_key).open("/console/overview")
        begin()
        if state in SIGNS:
            visits[0].page.locator(SIGNS[state]).wait_for()
        for (size, dark), visit in zip(WINDOWS, visits, strict=True):
            for name, path in pages.items():
                assert visit.open(path) == 200, name
                where = f"{name}, {size}, dark: {dark}"
                assert not visit.faults(), where
                assert visit.overflow() == 0, where
                keep(picture_of(visit), f"{state.__name__}-{name}", wide=size == WIDE, dark=dark)


@pytest.mark.deep
def test_pages_of_a_server_that_is_gone_are_drawn(browser, tmp_path):
    worker = ScriptedWorker()
    with ChildServer(tmp_path / "data", worker_urls=worker.url) as server, ExitStack() as visits:
        opened = []
        for size, dark in WINDOWS:
            for name, path in lists().items():
                visit = visits.enter_context(browser.visit(server.url, size=size, dark=dark))
                assert visit.sign_in(server.admin_key).open(path) == 200, name
                opened.append((name, size, dark, visit))
        server.kill()
        for name, size, dark, visit in opened:
            visit.page.locator("#away").wait_for()
            where = f"{name}, {size}, dark: {dark}"
            assert not visit.faults(), where
            assert visit.overflow() == 0, where
            keep(picture_of(visit), f"server_gone-{name}", wide=size == WIDE, dark=dark)
            visit.page.close()
            visit.problems.clear()  # htmx logs a stream that broke
    worker.close()
