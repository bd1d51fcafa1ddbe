"""People sign in at a provider on another site, in Chromium; the pages fit their role."""

import pytest
from oidc_provider import oidc_provider
from page_server import PageServer
from processes import free_port


@pytest.fixture(scope="module")
def provider():
    with oidc_provider() as running:
        running.add("anna", email="anna@example.org", groups=["watch"])
        running.add("ben", groups=["platform"])
        running.add("carl", groups=[])
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, provider):
    port = free_port()
    settings = provider.settings(public_url=f"http://localhost:{port}")
    with PageServer(tmp_path_factory.mktemp("server"), port=port, **settings) as running:
        yield running


@pytest.fixture
def visit(browser, server, provider):
    """Return a browser at ``localhost``, which is another site than the provider's address."""
    url = server.settings.console.public_url
    with browser.visit(url, other=provider.issuer) as opened:
        yield opened


def sign_in(visit, subject):
    """Sign in at the provider's page."""
    visit.page.get_by_role("link", name="Sign in with 127.0.0.1").click()
    visit.page.locator("input[name=sub]").fill(subject)
    visit.page.locator("input[name=sub]").press("Enter")


def test_a_viewer_signs_in_reads_and_signs_out(visit):
    visit.open("/console/throttling")
    sign_in(visit, "anna")
    visit.page.wait_for_url("**/console/throttling")
    assert "Viewer" in visit.text()
    assert "anna@example.org" in visit.text()
    assert visit.page.get_by_role("button", name="Apply").count() == 0
    assert visit.page.get_by_label("throttle.user_limit").is_disabled()
    assert not visit.faults()
    (cookie,) = visit.context.cookies()
    assert (cookie["name"], cookie["sameSite"]) == ("fairserve_console", "Strict")
    visit.open("/console/keys")
    assert visit.page.get_by_role("button").all_inner_texts() == ["Sign out"]
    visit.page.get_by_role("button", name="Sign out").click()
    visit.page.wait_for_url("**/console/sign-in")
    assert not visit.faults()


def test_an_admin_changes_a_key(visit, server):
    made = server.call(
        server.admin_key, "POST", "/admin/keys", {"name": "report", "role": "viewer"}
    )
    visit.open("/console/keys")
    sign_in(visit, "ben")
    visit.page.wait_for_url("**/console/keys")
    row = visit.page.locator("tr", has_text=made["prefix"])
    row.locator("summary").click()
    row.get_by_label("Role").select_option("operator")
    row.get_by_label("Expires").fill("2099-01-31T12:00Z")
    assert not visit.faults()
    row.get_by_role("button", name="Save").click()
    visit.page.wait_for_url("**/console/keys?done=key_changed")
    row = visit.page.locator("tr", has_text=made["prefix"])
    assert {"operator", "2099-01-31 12:00:00"} <= set(row.locator("td").all_inner_texts())


def test_a_person_without_a_role_sees_why(visit, provider):
    visit.open("/console/overview")
    sign_in(visit, "carl")
    alert = visit.page.get_by_role("alert")
    host = provider.issuer.removeprefix("http://")
    assert alert.inner_text() == (
        f"none of your groups at {host} has a role here; ask an administrator for one"
    )
    assert not visit.faults()
