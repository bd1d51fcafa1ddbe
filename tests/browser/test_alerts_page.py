"""The page of alarms is live, acknowledges in place, and has the history; a tenant sees its own."""

import openai
import pytest
from client_pages import call


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
