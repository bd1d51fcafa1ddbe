"""An operator makes a tenant, an app and a key from an empty installation, and calls with the key."""

import re

import pytest
from client_pages import call
from page_server import PageServer


@pytest.fixture
def server(tmp_path):
    with PageServer(tmp_path) as running:
        yield running


def secret(visit, kind):
    """Copy the key that the page shows; return it."""
    visit.page.get_by_role("button", name="Copy", exact=True).click()
    visit.page.get_by_text("Copied").wait_for()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(rf"sk-fs-{kind}-[\w-]{{43}}", copied)
    return copied


def settled(visit):
    """Check that the page is accessible and fits its window."""
    assert not visit.faults()
    assert visit.overflow() == 0


def test_a_tenant_an_app_and_a_key_are_made_and_the_key_calls(operator, server):
    page = operator.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    operator.open("/console/clients/tenants")
    settled(operator)
    form = page.get_by_role("form", name="New tenant")
    form.get_by_label("Name").fill("acme")
    form.get_by_label("Weight").fill("0")
    form.get_by_role("button", name="Create tenant").click()
    page.get_by_text("Nothing was changed.").wait_for()
    assert "Must be greater than or equal to 0.01." in form.inner_text()
    assert form.get_by_label("Name").input_value() == "acme", "the entries are kept"
    form.get_by_label("Weight").fill("2")
    form.get_by_role("button", name="Create tenant").click()
    assert secret(operator, "t")
    settled(operator)

    page.get_by_role("link", name="New app").click()
    form = page.get_by_role("form", name="New app")
    form.get_by_label("Name").fill("chat")
    form.get_by_label("Prompt, stage 2", exact=True).fill("900")
    form.get_by_label("Output, stage 2", exact=True).fill("50")
    settled(operator)
    form.get_by_role("button", name="Create app").click()
    secret(operator, "p")
    settled(operator)
    assert "900 → 50" in operator.text()

    page.get_by_role("link", name="App's keys").click()
    form = page.get_by_role("form", name="New key")
    form.get_by_label("Name").fill("laptop")
    form.get_by_role("button", name="Create key").click()
    key = secret(operator, "p")
    settled(operator)
    assert call(server, key, "anna").status_code == 200
    operator.open(page.url.removeprefix(server.url))
    assert key not in page.content(), "a key is shown once"

    row = page.get_by_role("row").filter(has_text="laptop")
    row.locator("summary").click()
    row.get_by_role("button", name=re.compile("^Revoke")).click()
    dialog = page.get_by_role("dialog")
    assert "It stops working at once" in dialog.inner_text()
    settled(operator)
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="hidden")
    row.get_by_role("button", name=re.compile("^Revoke")).click()
    dialog.get_by_role("button", name="Revoke").click()
    page.wait_for_url("**?done=key_revoked")
    assert "revoked" in row.inner_text()


def test_dialogs_state_what_happens_and_work_without_scripts(browser, server):
    app = server.new_app(name="chat")
    with browser.visit(server.url, scripts=False) as visit:
        visit.sign_in(server.admin_key).open(f"/console/clients/apps/{app['id']}")
        visit.page.get_by_role("button", name="Delete", exact=True).click()
        dialog = visit.page.get_by_role("dialog", name="Delete chat?")
        assert "It can be restored for" in dialog.inner_text()
        dialog.get_by_role("button", name="Delete").click()
        visit.page.wait_for_url("**?done=delete")
        visit.confirm("Restore")
        visit.page.wait_for_url("**?done=restore")
    path = f"/v1/apps/{app['id']}?tenant={app['tenant_id']}"
    assert server.call(server.admin_key, "GET", path)["deleted_at"] is None


def test_the_use_of_a_quota_is_beside_its_limit(operator, server):
    app = server.new_app(name="chat", contract={"rpm_limit": 5})
    call(server, app["api_key"], "anna")
    operator.open(f"/console/clients/apps/{app['id']}")
    form = operator.page.get_by_role("form", name="Quota of the app")
    assert "1 of 5 calls in the last 60 s" in form.inner_text()
    assert form.get_by_role("meter", name="Use of Calls per minute").count() == 1
