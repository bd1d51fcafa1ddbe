"""No page of a large installation is long: rows, lines of charts and height are bounded.

A thousand runs, 20 tenants with 60 apps, and more clients and workers than a page lists.
The deep form prints when each page is first painted with 10,000 clients in memory.
"""

import time

import pytest
from client_pages import path_of
from many_clients import APP, TENANT, USER, call_now, fill
from page_server import PageServer
from server_client import DEADLINE_S

from fairserve.platform.console.navigation import navigation

WINDOW = (1440, 900)
MOST_SCREENS, MOST_ROWS, MOST_LINES = 3, 50, 6
"""Lines of a chart: five, and the others as one."""
CLIENTS, VERY_MANY, MANY = 200, 10_000, 17
"""Clients in memory, those of the deep form, and workers, aliases, users and prices."""
SIZES = """() => ({
    height: document.documentElement.scrollHeight,
    rows: Math.max(0, ...[...document.querySelectorAll('main :is(tbody, ol, ul)')]
        .map((each) => each.childElementCount)),
    lines: Math.max(0, ...Object.values(
        JSON.parse(document.getElementById('chart-data')?.textContent || '{}'))
        .map((chart) => chart.series.length)),
})"""
FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
RESPONSE = "performance.getEntriesByType('navigation')[0].responseEnd"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "data").mkdir()
    fill(folder / "data" / "fairserve.sqlite3", runs=1_200, clients=CLIENTS, days=4)
    with PageServer(folder) as running:
        app = running.new_app(running.new_tenant("large"), "large")
        call_now(running, clients=CLIENTS)
        for number in range(MANY):
            _add(running, app, number)
        running.app = app
        yield running


def _add(server, app, number):
    admin, tenant = server.admin_key, app["tenant_id"]
    price = {"model": f"m-{number}", "input": 1, "output": 2, "valid_from": "2099-01-31T12:00Z"}
    server.call(admin, "POST", "/admin/prices", price)
    server.call(admin, "PUT", f"/admin/users/{tenant}/user-{number}", {"weight": 2})
    server.call(admin, "PUT", f"/admin/cluster/aliases/alias-{number:02d}", {"target": {"m": 1}})
    url = f"http://127.0.0.1:9/{number}"
    worker = {"id": f"away-{number:02d}", "url": url, "kind": "openai"}
    server.call(admin, "POST", "/admin/cluster/workers", worker)


@pytest.fixture(scope="module")
def paths(server):
    """Return the paths of all pages by name."""
    app, tenant = server.app["id"], server.app["tenant_id"]
    rejected = server.call(server.admin_key, "GET", "/admin/throttling/events?limit=1")["items"]
    return {
        **{page.name: page.path for page in navigation()},
        "runs of a user": f"/console/interactions?user={USER}",
        "run": f"/console/interactions/{TENANT}/{APP}/run_7",
        "rejection": f"/console/refusals/{rejected[0]['call_id']}",
        "client": path_of({"tenant_id": TENANT, "id": APP}, USER),
        "tenant": f"/console/clients/tenants/{TENANT}",
        "app": f"/console/clients/apps/{APP}",
        "new app": f"/console/clients/apps/new?tenant={TENANT}",
        "keys of an app": f"/console/clients/apps/{app}/keys",
        "keys of a tenant": f"/console/clients/tenants/{tenant}/keys",
        "users": f"/console/clients/apps/{app}/users",
        "webhooks of a tenant": f"/console/webhooks/{tenant}",
        "usage by user": "/console/usage?group_by=user",
        "usage by hour": "/console/usage?group_by=hour",
    }


def test_no_page_has_many_rows_or_lines_or_is_longer_than_three_screens(browser, server, paths):
    found = {}
    with browser.visit(server.url, size=WINDOW) as visit:
        visit.context.set_default_timeout(1000 * DEADLINE_S)
        visit.sign_in(server.admin_key)
        for name, path in paths.items():
            assert visit.open(path) == 200, name
            found[name] = visit.page.evaluate(SIZES)
    limits = {"height": MOST_SCREENS * WINDOW[1], "rows": MOST_ROWS, "lines": MOST_LINES}
    too_large = {
        name: sizes
        for name, sizes in found.items()
        if any(sizes[each] > limit for each, limit in limits.items())
    }
    assert not too_large, too_large
    assert found["cluster"]["rows"] >= 5, "the workers are listed"


@pytest.mark.deep
def test_first_paint_of_pages_with_very_many_clients(browser, server, paths):
    call_now(server, clients=VERY_MANY)
    with browser.visit(server.url, size=WINDOW) as visit:
        visit.context.set_default_timeout(1000 * DEADLINE_S)
        visit.sign_in(server.admin_key)
        for name, path in paths.items():
            found = []
            for _ in range(5):
                before_s = time.process_time()
                assert visit.open(path) == 200, name
                cpu_ms = 1000 * (time.process_time() - before_s)
                paint_ms = visit.page.wait_for_function(FIRST_PAINT).json_value()
                found.append((paint_ms, visit.page.evaluate(RESPONSE), cpu_ms))
            least = " / ".join(f"{min(column):.0f}" for column in zip(*found, strict=True))
            print(f"{name}: least first paint / end of the response / CPU of the server {least} ms")
