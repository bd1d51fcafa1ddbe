"""An operator sees what is in memory while the database or the server is away, and what is away."""

import os
import re
import signal

import pytest
from chromium import NARROW
from client_pages import path_of
from database_proxy import proxied
from gateway_server import ChildServer
from postgres_process import new_database, new_template, running_postgres
from scripted_worker import ScriptedWorker
from served_app import served
from whole_server import WholeServer

FROM_MEMORY = {
    "alarms": "Open and acknowledged alarms",
    "clients": "ann",
    "interactions": "Ended runs are not shown: they are in the database, which does not answer.",
    "cluster": "Not shown: the jobs are in the database, which does not answer.",
    "overview": "Degraded since",
}
"""Pages that need no database, and a text on each."""


@pytest.fixture
def proxy():
    with (
        running_postgres() as postgres,
        proxied(new_database(postgres, new_template(postgres))) as it,
    ):
        yield it


@pytest.fixture
def server(proxy, tmp_path):
    with (
        WholeServer(tmp_path / "data", database_url=proxy.url, secret_key="s" * 40) as running,
        served(running.client) as running.url,
    ):
        yield running


@pytest.fixture
def process(tmp_path):
    """Yield a server that can be killed and started again."""
    worker = ScriptedWorker()
    with ChildServer(tmp_path / "data", worker_urls=worker.url) as running:
        yield running
    worker.close()


def test_pages_show_what_is_in_memory_while_the_database_is_away(operator, server, proxy):
    app, page = server.new_app(name="research"), operator.page
    server.call(app["api_key"], "POST", "/v1/interactions", {"id": "run-7", "user": "ann"})
    server.chat(app["api_key"], "hi", user="ann")
    for name in FROM_MEMORY:
        assert operator.open(f"/console/{name}") == 200
    page.locator("#status .healthy").wait_for()
    proxy.cut()
    page.locator("#status .degraded").wait_for()
    for name, text in FROM_MEMORY.items():
        assert operator.open(f"/console/{name}") == 200
        assert text in operator.text(), name
        page.locator(".live.on").wait_for()
        assert not operator.faults(), name
    run = f"/console/interactions/{app['tenant_id']}/{app['id']}"
    for path, *texts in (
        (f"{run}/run-7", "Only calls in progress are shown", "in progress", "ann", "not known"),
        (f"{run}/ended", "Nothing of this run is in memory"),
        (path_of(app, "ann"), "Share of the service", "Settings and quota of the user are in"),
        (path_of(app, "nobody"), "No calls in the last half hour", "Settings and quota"),
        (f"/console/clients/tenants/{app['tenant_id']}", "ann", "run-7", "apps and keys are in"),
        (f"/console/clients/apps/{app['id']}", "research", "ann", "run-7", "profile and keys"),
        ("/console/clients/apps/app_none", "No calls in the last half hour", "Ended runs are not"),
    ):
        assert operator.open(path) == 200, path
        for text in texts:
            assert text in operator.text(), (path, text)
        assert not operator.faults(), path
        assert operator.overflow() == 0, path
    operator.open("/console/overview")
    assert "not known" in page.locator("table.now tbody tr").first.inner_text(), "what is spent"
    operator.open("/console/interactions")
    assert "run-7" in operator.text()
    assert "research" in operator.text(), "the last known name"
    assert operator.open("/console/usage") == 503
    assert "This page needs the database, which does not answer since" in operator.text()
    proxy.restore()
    page.locator("#status .healthy").wait_for()  # this page has no stream


def test_a_tenant_sees_its_own_alone_while_the_database_is_away(browser, server, proxy):
    own, other = (server.new_app(name=name) for name in ("ours", "theirs"))
    for app, user in ((own, "ann"), (other, "bob")):
        server.call(app["api_key"], "POST", "/v1/interactions", {"id": "run-7", "user": user})
        server.chat(app["api_key"], "hi", user=user)
    with browser.visit(server.url) as visit, browser.visit(server.url) as admin:
        visit.sign_in(own["tenant_key"]).open("/console/overview")
        admin.sign_in(server.admin_key).open("/console/clients")
        assert "theirs" in admin.text(), "its name is known from now on"
        proxy.cut()
        visit.page.locator("#status .degraded").wait_for()
        tenant = own["tenant_id"]
        for path in (
            f"/console/clients/apps/{other['id']}",
            f"/console/clients/{tenant}/{other['id']}/bob",
            f"/console/interactions/{tenant}/{other['id']}/run-7",
        ):
            assert visit.open(path) == 200, path
            assert not {"theirs", "in progress"} & set(visit.text().split()), path
            assert visit.page.locator("table a, .tiles .badge, meter").count() == 0, path
        assert visit.open(f"/console/clients/{other['tenant_id']}/{other['id']}/bob") == 404
        assert visit.open(f"/console/clients/apps/{own['id']}") == 200
        assert "ann" in visit.text()


def test_a_page_shows_that_its_server_is_away_and_continues_by_itself(browser, process):
    with (
        browser.visit(process.url) as visit,
        browser.visit(process.url, size=NARROW, dark=True) as narrow,
    ):
        page = visit.sign_in(process.admin_key).page
        visit.open("/console/overview")
        narrow.sign_in(process.admin_key).open("/console/usage")
        page.get_by_text("No alarms.").wait_for()
        ask(process, "ann")
        page.locator("[data-chart=calls][aria-label*='accepted 0.2/s']").wait_for()
        page.evaluate(COUNT_ALERTS)

        os.kill(process.process.pid, signal.SIGSTOP)
        page.locator("#away").wait_for()
        os.kill(process.process.pid, signal.SIGCONT)
        page.locator("#away").wait_for(state="detached")

        process.kill()
        for each in (visit, narrow):
            banner = each.page.locator("#away")
            banner.get_by_text(
                re.compile(r"No data since [\d:]{8}: the server does not answer")
            ).wait_for()
            todo = "Start it, or repair the network to it; calls fail until then."
            assert todo in banner.inner_text()
            assert not each.faults()
            assert each.overflow() == 0
        for _ in range(2):
            page.wait_for_event("requestfailed", lambda request: "/status" in request.url)
        assert page.evaluate("window.alerts") == 3, "it is announced once, gone, announced once"
        assert not page.get_by_text("No alarms.").is_visible()
        assert page.get_by_text("Alarms are not known").is_visible()
        assert "grayscale" in page.locator("main").evaluate("each => getComputedStyle(each).filter")

        process.start()
        for each in (visit, narrow):
            each.page.locator("#away").wait_for(state="detached")
        page.get_by_text("No alarms.").wait_for()
        ask(process, "bob")
        calls = page.locator("figure", has=page.locator("[data-chart=calls]"))
        calls.locator("[aria-label*='accepted 0.2/s'][aria-label*='restarted ']").wait_for()
        calls.get_by_text("as a table").click()
        served = calls.locator("tr", has_text="0.2/s")
        served.nth(1).wait_for()  # the table is drawn once it is open; what was before stays
        assert served.count() == 2
        page.locator(".marks").get_by_text("Server started").wait_for()
        # htmx logs a stream that broke.
        visit.problems[:] = [each for each in visit.problems if each != "console: [object Event]"]


COUNT_ALERTS = """() => {
    window.alerts = 0;
    new MutationObserver(() => { window.alerts += 1; })
        .observe(document.querySelector('.page'), { childList: true });
}"""


def ask(process, user):
    process.openai().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], user=user, max_tokens=5
    )
