"""A flood is seen as it comes, and why its calls are refused."""

import json
import re

import httpx
import pytest
from browser import NARROW
from console_load import SMALL, Load
from live_server import LiveServer
from processes import eventually

HTML = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """So small that a few users are an overload."""
    with LiveServer(tmp_path_factory.mktemp("server"), **SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name=f"chat {HTML}", limits={"user_rpm": 20})


@pytest.fixture(scope="module")
def other(server):
    return server.new_app(name="somebody else's")


@pytest.fixture(scope="module")
def flood(server, app):
    with Load(server, app["api_key"]) as load:
        yield load


def chart(visit, name):
    """What a chart says of itself to those who do not see it."""
    return visit.page.locator(f"[data-chart={name}]").get_attribute("aria-label") or ""


def test_a_flood_appears_and_says_why_it_is_refused(browser, server, app, flood):
    with browser.visit(server.url) as visit:
        visit.sign_in(server.admin_key)
        live = visit.page.locator(".live")
        live.get_by_text("live", exact=True).wait_for()
        visit.page.wait_for_function(
            "() => /flooder-0/.test(document.querySelector('[data-chart=service]').ariaLabel)"
        )
        visit.page.wait_for_function(
            "() => /overloaded user limit [1-9]/.test("
            "document.querySelector('[data-chart=refusals]').ariaLabel)",
            timeout=90_000,
        )
        assert visit.page.locator("img").count() == 0, "names stay text"
        assert re.search(r"load \d", chart(visit, "load"))
        visit.page.locator("figure", has=visit.page.locator("[data-chart=service]")).get_by_text(
            "as a table"
        ).click()
        assert visit.page.get_by_role("columnheader", name=re.compile("flooder-0")).count() == 1
        assert not visit.faults()

        visit.page.get_by_role("link", name="Refusals").first.click()
        visit.page.locator("tbody tr").first.wait_for()
        newest = visit.page.locator("tbody tr").first.get_attribute("id")
        visit.page.wait_for_function(
            f"() => document.querySelector('tbody tr').id !== '{newest}'", timeout=60_000
        )
        assert not visit.faults()
        visit.page.locator("tbody").get_by_role("link", name="flooder-0").first.click()
        visit.page.wait_for_url("**/console/refusals?user=flooder-0")
        visit.page.locator("tbody a[href*='/console/refusals/']").first.click()
        visit.page.wait_for_url("**/console/refusals/call_*")
        text = visit.text()
        assert "Why was this refused?" in text
        assert re.search(r"20 calls", text), text
        assert re.search(r"Counted\s+2\d", text), text
        assert "flooder-0" in text
        assert HTML in text, "it is text"
        assert not visit.faults()


def refused_lately(server, seconds=10):
    live = server.admin("GET", f"/admin/live?buckets={seconds // 5}")
    return sum(sum(counts) for counts in live["activity"]["refused"].values())


def test_a_changed_limit_is_seen_in_the_traffic_and_taken_back(browser, server, flood):
    field = "#p-high_watermark"
    with browser.visit(server.url) as visit:
        visit.sign_in(server.admin_key)
        eventually(lambda: refused_lately(server) > 0, "nothing is refused")
        visit.page.get_by_role("link", name="Throttling").first.click()
        visit.page.locator(field).fill("50")
        visit.page.get_by_role("button", name="Apply").click()
        visit.page.get_by_text("The setting holds from now on.").wait_for()
        assert visit.page.locator(field).input_value() == "50"
        eventually(lambda: refused_lately(server) == 0, "it still refuses")
        visit.page.get_by_role("button", name=re.compile("Revert")).first.click()
        visit.page.get_by_text("The earlier setting holds again").wait_for()
        assert visit.page.locator(field).input_value() == "0.3"
        eventually(lambda: refused_lately(server) > 0, "it does not refuse again")
        visit.go("/console/audit?action=throttling.change")
        assert visit.page.locator("tbody tr").count() == 2


def test_a_tenant_sees_only_its_own(browser, server, app, other, flood):
    with browser.visit(server.url) as visit:
        visit.sign_in(other["tenant_key"])
        assert "flooder-0" not in visit.page.content()
        visit.go("/console/refusals")
        assert "No refusal fits" in visit.text()
        assert visit.go(f"/console/refusals?tenant={app['tenant_id']}") == 404
        refused = server.admin("GET", "/admin/throttling/events")["items"][0]
        assert visit.go(f"/console/refusals/{refused['call_id']}") == 404
        assert visit.go(f"/console/usage?tenant={app['tenant_id']}") == 404
        assert visit.go(f"/console/usage?app={app['id']}") == 404
        assert visit.go(f"/console/audit?tenant={app['tenant_id']}") == 404
        run = f"{app['tenant_id']}/{app['id']}/{refused['interaction_id']}"
        assert visit.go(f"/console/interactions/{run}") == 404
        visit.go("/console/audit")
        assert app["id"] not in visit.page.content()
        assert other["id"] in visit.page.content()


def test_a_report_is_downloaded(browser, server, app, flood):
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"])
        visit.page.get_by_role("link", name="Usage").first.click()
        with visit.page.expect_download() as waiting:
            visit.page.get_by_role("link", name="CSV").click()
        lines = waiting.value.path().read_text().splitlines()
        assert "calls" in lines[0]
        assert len(lines) == 2
        with visit.context.expect_page() as waiting:
            visit.page.get_by_role("link", name="JSON").click()
        report = json.loads(waiting.value.locator("body").inner_text())
        assert report["sums"]["calls"] > 0
        assert report["group_by"] == ["app"]


@pytest.mark.parametrize("page", ["overview", "refusals", "usage", "audit"])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_a_phone(browser, server, app, flood, page, dark):
    with browser.visit(server.url, dark=dark, size=NARROW) as visit:
        visit.sign_in(server.admin_key)
        assert visit.go(f"/console/{page}") == 200
        assert visit.overflow() == 0
        assert not visit.faults()


@pytest.mark.parametrize("page", ["overview", "refusals", "usage", "audit"])
def test_pages_say_the_same_without_scripts(browser, server, flood, page):
    with browser.visit(server.url, scripts=False) as visit:
        visit.sign_in(server.admin_key)
        assert visit.go(f"/console/{page}") == 200
        assert visit.page.locator("h1").inner_text()


@pytest.mark.parametrize(
    "path",
    [
        "refusals?since=yesterday",
        "refusals?limit=0",
        "refusals?nonsense=1",
        "usage?from=2026-02-30",
        "usage?group_by=planet",
        "audit?since=2026-01-01",
        "overview?minutes=0",
    ],
)
def test_what_cannot_be_asked_for_is_named(server, path):
    with httpx.Client(base_url=server.url) as client:
        client.post("/console/sign-in", data={"key": server.admin_key})
        answer = client.get(f"/console/{path}")
        assert answer.status_code == 400
        field = path.partition("?")[2].partition("=")[0]
        assert field in answer.text
        assert answer.headers["content-type"].startswith("text/html")


def test_too_many_live_pages_are_refused(tmp_path):
    with (
        LiveServer(tmp_path, workers=1, console_streams=1) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        client.post("/console/sign-in", data={"key": server.admin_key})
        with client.stream("GET", "/console/overview/stream") as first:
            lines = first.iter_lines()
            assert next(lines) == "retry: 3000"
            assert client.get("/console/overview/stream").status_code == 503
        server.stop()  # an open page does not hold it up
