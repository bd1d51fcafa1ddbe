"""The page of alarms is live, acknowledges in place, and has the history; a tenant sees its own."""

import re

import openai
import pytest
from client_pages import call
from page_server import PageServer


def test_an_alarm_appears_and_is_acknowledged_in_place(browser, operator, server):
    page = operator.page
    victim, other = server.new_app(name="cut off"), server.new_app(name="other")
    path = f"/v1/apps/{victim['id']}?tenant={victim['tenant_id']}"
    server.call(server.admin_key, "PATCH", path, {"contract": {"rpm_limit": 1}})
    operator.open("/console/alarms")
    page.get_by_text("No alarms.").wait_for()
    call(server, victim["api_key"], "ann")
    for _ in range(6):
        with pytest.raises(openai.RateLimitError):
            call(server, victim["api_key"], "ann")
    server.sample()
    row = page.locator("tbody tr", has_text="6 of 7 calls are rejected")
    row.get_by_role("link", name="cut off", exact=True).wait_for()
    assert not operator.faults()
    row.get_by_role("button", name="Acknowledge").click()
    row.get_by_text("acknowledged", exact=True).wait_for()
    assert row.get_by_role("button").count() == 0
    with browser.visit(server.url) as visit:
        visit.sign_in(victim["tenant_key"]).open("/console/alarms")
        own = visit.page.locator("tbody tr")
        assert "6 of 7 calls are rejected" in own.inner_text()
        assert "an operator" in own.inner_text()
        visit.sign_in(other["tenant_key"]).open("/console/alarms")
        assert "No alarms." in own.inner_text()
    operator.open("/console/alarms?state=resolved")
    assert "No alarms." in page.locator("tbody").inner_text()


def cut_off(server, name, quota="contract"):
    """Return an app whose calls are rejected by a limit."""
    app = server.new_app(name=name)
    path = f"/v1/apps/{app['id']}?tenant={app['tenant_id']}"
    server.call(server.admin_key, "PATCH", path, {quota: {"rpm_limit": 1}})
    call(server, app["api_key"], "ann")
    for _ in range(6):
        with pytest.raises(openai.RateLimitError):
            call(server, app["api_key"], "ann")
    return app


def test_the_card_of_an_alarm_restores_the_limit_that_caused_it(operator, server):
    app = cut_off(server, "wrong limit", "user_contract")
    server.sample()
    operator.open("/console/overview")
    card = operator.page.locator(".incident", has_text="Calls of wrong limit are rejected")
    card.get_by_text("Last change: user_contract.rpm_limit none → 1 by").wait_for()
    card.get_by_role("button", name="Restore no limit").click()
    dialog = operator.page.get_by_role("dialog")
    dialog.get_by_text("Sets user_contract.rpm_limit from 1 to no limit for wrong limit").wait_for()
    assert not operator.faults()
    dialog.get_by_role("button", name="Restore no limit").click()
    operator.page.wait_for_url("**/console/overview?done=limits")
    operator.page.get_by_text("Limits restored; they apply from the next call.").wait_for()
    call(server, app["api_key"], "ann")


def test_the_status_line_names_the_open_alarms_of_its_viewer(browser, tmp_path):
    with PageServer(tmp_path) as server, browser.visit(server.url) as visit:
        page, line = visit.sign_in(server.admin_key).page, visit.page.locator("#status")
        third = server.new_app(name="third")
        visit.open("/console/overview")
        line.locator(".healthy").wait_for()
        first, second = cut_off(server, "first"), cut_off(server, "second")
        server.sample()
        line.locator(".alarmed").wait_for()
        shown = line.inner_text()
        assert re.match(r"2 open alarms since [\d-]{10} [\d:]{8}: ", shown), shown
        assert "Calls of first are rejected" in shown
        assert "Calls of second are rejected" in shown
        assert "Healthy" not in shown
        assert not visit.faults()
        line.get_by_role("link", name="Calls of first are rejected").click()
        row = page.locator("tbody tr:target", has_text="first")
        row.get_by_role("button", name="Acknowledge").click()
        line.get_by_text("1 open alarm since").wait_for()
        line.get_by_role("link", name="1 acknowledged alarm", exact=True).wait_for()
        assert "first" not in line.inner_text()
        for app, own in ((second, "Calls of second are rejected"), (first, "1 acknowledged")):
            visit.sign_in(app["tenant_key"]).open("/console/overview")
            shown = line.inner_text()
            assert own in shown
            assert not {"first", "second"} - {app["name"]} & set(shown.split())
            fragment = page.evaluate("fetch('/console/status').then((it) => it.text())")
            assert own in fragment
            assert ("Healthy" in fragment) == (app is first)
        visit.sign_in(third["tenant_key"]).open("/console/overview")
        assert re.fullmatch(r"Healthy since [\d-]{10} [\d:]{8}\.", line.inner_text())
