"""A flood and the explanation of its rejections are visible live."""

import json
import re

import httpx
import openai
import pytest
from client_pages import call, waits
from console_load import HIGH_WATERMARK, LIMIT, SMALL, Flood
from page_server import PageServer

HTML = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
BURST = LIMIT + 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("server"), **SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name=f"chat {HTML}", limits={"user_rpm": LIMIT})


@pytest.fixture(scope="module")
def other(server):
    return server.new_app(name="somebody else's")


@pytest.fixture(scope="module")
def flood(server, app):
    """Start a flood whose limit is exhausted: every further call is rejected under overload."""
    found = Flood(server, app)
    assert found.burst(BURST) == BURST - LIMIT
    return found


@pytest.fixture(scope="module")
def operator_session(server):
    """Return an operator's session without a browser."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.post("/console/sign-in", data={"key": server.admin_key})
        yield client


def test_a_flood_appears_with_the_explanation_of_its_rejections(operator, server, app):
    page = operator.page
    operator.open("/console/overview")
    page.locator(".live").get_by_text("live", exact=True).wait_for()
    row = page.locator("table.now tr", has_text=f"tenant of chat {HTML}")
    assert row.count() == 0
    flood = Flood(server, app, flooder="eve")
    assert flood.burst(BURST) == BURST - LIMIT
    row.wait_for()
    calls = f"{BURST - LIMIT} of {BURST + 6}"
    assert calls in row.inner_text(), "six users have a call each"
    bar = row.locator(".bullet").get_attribute("aria-label")
    assert "gets 100 % of the service and is entitled to 100 %" in bar
    page.locator("[data-chart=calls][aria-label*='rejected 0.8/s']").wait_for()
    load = page.locator(".tiles").inner_text()
    assert float(re.search(r"Load\s+(\d+(\.\d+)?) %", load)[1]) > 100 * HIGH_WATERMARK, load
    figure = page.locator("figure", has=page.locator("[data-chart=calls]"))
    figure.get_by_text("as a table").click()
    page.get_by_role("columnheader", name="rejected", exact=True).wait_for()
    assert not operator.faults()

    page.get_by_role("link", name="Rejections").first.click()
    page.locator(".live.on").wait_for()
    newest = page.locator("#rejections tr").first.get_attribute("id")
    assert flood.burst(1) == 1
    page.locator(f"#rejections tr:first-child:not(#{newest})").wait_for()
    assert not operator.faults()
    page.locator("#rejections").get_by_role("link", name="eve").first.click()
    page.wait_for_url("**/console/refusals?user=eve")
    page.locator("#rejections a[href*='/console/refusals/']").first.click()
    page.wait_for_url("**/console/refusals/call_*")
    text = operator.text()
    assert "Explanation of the rejection" in text
    assert f"{LIMIT} calls" in text, text
    assert re.search(r"Counted\s+2\d", text), text
    assert "eve" in text
    assert HTML in text, "it is text"
    assert not operator.faults()


def test_a_changed_limit_affects_the_traffic_and_is_reverted(operator, flood):
    page = operator.page
    field = page.locator("#p-high_watermark")
    assert flood.burst(3) == 3
    operator.open("/console/overview")
    page.get_by_role("link", name="Settings").first.click()
    field.fill("50")
    page.get_by_role("button", name="Apply").click()
    page.get_by_text("The settings are in force.").wait_for()
    assert field.input_value() == "50"
    assert flood.burst(3) == 0
    page.get_by_role("button", name=re.compile("Revert")).first.click()
    page.get_by_text("The settings of the earlier version are in force").wait_for()
    assert field.input_value() == "0.3"
    assert flood.burst(3) == 3
    operator.open("/console/audit?action=throttling.change")
    assert page.locator("tbody tr").count() == 2


def test_the_card_of_an_alarm_names_what_since_who_and_action(operator, server):
    page = operator.page
    victim = server.new_app(name="cut off")
    price = {"model": "*", "input": 1, "output": 2, "valid_from": "2099-01-31T12:00Z"}
    server.call(server.admin_key, "POST", "/admin/prices", price)
    path = f"/v1/apps/{victim['id']}?tenant={victim['tenant_id']}"
    server.call(server.admin_key, "PATCH", path, {"contract": {"rpm_limit": 1}})
    operator.open("/console/overview")
    page.locator(".live").get_by_text("live", exact=True).wait_for()
    call(server, victim["api_key"], "ann")
    for _ in range(6):
        with pytest.raises(openai.RateLimitError):
            call(server, victim["api_key"], "ann")
    # The limit is looked up in the rows of the rejections.
    assert server.platform.ledger.flush(60)
    server.sample()
    card = page.locator(".incident.bad", has_text="6 of 7 calls are rejected")
    card.get_by_role("heading", name="Calls of cut off are rejected").wait_for()
    card.get_by_text("contract.rpm_limit none → 1 by").wait_for()
    page.locator(".marks li").get_by_text(re.compile("[0-9] price created by")).wait_for()
    card.get_by_text("the quota of the app is 1 call in 60 s").wait_for()
    shown = card.inner_text()
    assert re.search(r"Since\s+[\d-]{10} [\d:]{8}, (\d+ s ago|just now)", shown), shown
    assert re.search(r"Affected\s+cut off of ", shown), shown
    assert not operator.faults()
    assert operator.overflow() == 0
    with page.expect_navigation():
        card.get_by_role("link", name="Open the limit").click()
    assert page.url.endswith(f"/console/clients/apps/{victim['id']}#contract.rpm_limit")
    operator.open("/console/overview")
    card.get_by_role("button", name="Acknowledge").click()
    line = page.locator(".incident-lines li", has_text="Calls of cut off are rejected")
    line.get_by_text("acknowledged by").wait_for()
    assert line.get_by_role("button", name="Acknowledge").count() == 0
    assert card.count() == 0
    assert not operator.faults()


def test_the_highest_wait_counts_a_call_that_still_waits(operator, server):
    app = server.new_app(name="patient")
    with waits(server, app, "ann"):
        for _ in range(2):
            server.sample()
        operator.open("/console/overview")
        row = operator.page.locator("table.now tr", has_text="tenant of patient")
        wait = row.locator("[data-label='Wait p99']").inner_text()
        assert re.fullmatch(r"[\d.]+ s 1 wait", wait), wait
        tile = operator.page.locator(".tiles > div", has_text="Wait p99").locator("dd")
        assert tile.inner_text().splitlines()[0] == wait.removesuffix(" 1 wait")


def test_a_tenant_sees_only_its_own_traffic(browser, server, app, other, flood):
    with browser.visit(server.url) as visit:
        visit.sign_in(other["tenant_key"]).open("/console/overview")
        assert "No calls in the last 5 minutes" in visit.text()
        visit.open("/console/refusals")
        assert "No rejections match" in visit.text()
        assert visit.open(f"/console/refusals?tenant={app['tenant_id']}") == 404
        rejected = server.call(server.admin_key, "GET", "/admin/throttling/events")["items"][0]
        assert visit.open(f"/console/refusals/{rejected['call_id']}") == 404
        assert visit.open(f"/console/usage?tenant={app['tenant_id']}") == 404
        assert visit.open(f"/console/usage?app={app['id']}") == 404
        assert visit.open(f"/console/audit?tenant={app['tenant_id']}") == 404
        run = f"{app['tenant_id']}/{app['id']}/{rejected['interaction_id']}"
        assert visit.open(f"/console/interactions/{run}") == 404
        visit.open("/console/audit")
        assert app["id"] not in visit.page.content()
        assert other["id"] in visit.page.content()


def test_a_report_is_downloaded(browser, server, app, flood):
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"]).open("/console/overview")
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


def test_pages_have_the_same_content_without_scripts(browser, server, flood):
    with browser.visit(server.url, scripts=False) as visit:
        visit.sign_in(server.admin_key)
        for page in ("overview", "refusals", "usage", "audit"):
            assert visit.open(f"/console/{page}") == 200
            assert visit.page.locator("h1").inner_text(), page


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
def test_invalid_queries_are_named(operator_session, path):
    answer = operator_session.get(f"/console/{path}")
    assert answer.status_code == 400
    field = path.partition("?")[2].partition("=")[0]
    assert field in answer.text
    assert answer.headers["content-type"].startswith("text/html")
