"""Test the sign-in with keys, ends of sessions, and forms of other sites."""

import re
import sqlite3
from contextlib import ExitStack, closing

import httpx
import pytest


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name="pages")


@pytest.fixture
def signed_in(server):
    """Yield a function that returns a session without a browser, and the token for its forms."""
    with ExitStack() as clients:

        def sign_in(key):
            client = clients.enter_context(httpx.Client(base_url=server.url, timeout=60))
            answer = client.post("/console/sign-in", data={"key": key})
            assert answer.status_code == 303
            page = client.get("/console/overview").text
            return client, re.search('name="csrf" value="([0-9a-f]{64})"', page)[1]

        yield sign_in


@pytest.mark.parametrize("scripts", [True, False])
def test_an_operator_signs_in_and_out(browser, server, scripts):
    with browser.visit(server.url, scripts=scripts) as visit:
        assert visit.open("/console") == 200
        assert "/console/sign-in" in visit.page.url
        visit.page.get_by_label("Key").fill(server.admin_key)
        visit.page.get_by_role("button", name="Sign in").click()
        visit.page.wait_for_url("**/console/overview")
        assert "Admin" in visit.text()
        assert server.admin_key not in visit.page.content()
        (cookie,) = visit.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert cookie["path"] == "/console"
        assert cookie["expires"] == -1, "it ends with the browser"
        visit.page.get_by_role("button", name="Sign out").click()
        visit.page.wait_for_url("**/console/sign-in")
        visit.context.add_cookies([{**cookie, "expires": -1}])
        visit.open("/console/overview")
        assert "/console/sign-in" in visit.page.url, "the session has ended on the server, too"


def test_sign_in_redirects_to_the_requested_page(browser, server):
    with browser.visit(server.url) as visit:
        visit.open("/console/audit?action=app.create")
        visit.page.get_by_label("Key").fill(server.admin_key)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**/console/audit?action=app.create")


@pytest.mark.parametrize(
    "onward", ["https://example.org/", "//example.org", "/console/\\example.org", "/v1/models", "x"]
)
def test_sign_in_redirects_to_no_other_site(server, onward):
    answer = httpx.post(
        f"{server.url}/console/sign-in",
        data={"key": server.admin_key, "next": onward},
        timeout=60,
    )
    assert answer.headers["location"] == "/console/overview"


def test_a_tenant_signs_in_and_an_app_does_not(browser, server, app):
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"]).open("/console/overview")
        assert "tenant of pages" in visit.text()
        for page in ("throttling", "cluster"):
            assert visit.page.locator(f"nav a[href='/console/{page}']").count() == 0
            assert visit.open(f"/console/{page}") == 404
        visit.open("/console/overview")
        visit.page.get_by_role("button", name="Sign out").click()
        visit.page.get_by_label("Key").fill(app["api_key"])
        visit.page.get_by_role("button", name="Sign in").click()
        assert "this is an app key" in visit.page.get_by_role("alert").inner_text()


def test_a_session_ends_with_its_key(server, app, signed_in):
    keys = f"/admin/tenants/{app['tenant_id']}/keys"
    new = server.call(server.admin_key, "POST", keys, {"name": "console"})
    client, _ = signed_in(new["api_key"])
    assert client.get("/console/overview").status_code == 200
    server.call(server.admin_key, "DELETE", f"{keys}/{new['id']}")
    assert client.get("/console/overview").headers["location"].startswith("/console/sign-in")


def test_the_database_contains_no_cookie(server, signed_in):
    client, _ = signed_in(server.admin_key)
    token = client.cookies["fairserve_console"]
    with closing(sqlite3.connect(server.data_dir / "fairserve.sqlite3")) as database:
        rows = database.execute("SELECT * FROM console_sessions").fetchall()
    assert rows
    assert token not in str(rows)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"data": {"other": "1"}}, 403),
        ({"data": {"csrf": "0" * 64}}, 403),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403),
        ({"headers": {"sec-fetch-site": "same-site"}}, 403),
        ({"content": b"{}", "headers": {"content-type": "application/json"}}, 400),
        ({}, 303),
    ],
)
def test_forms_of_other_sites_change_nothing(server, change, status, signed_in):
    client, csrf = signed_in(server.admin_key)
    request = {"data": {"csrf": csrf}, **change}
    if "content" in change:
        del request["data"]
    answer = client.post("/console/sign-out", **request)
    assert answer.status_code == status, answer.text
    still = client.get("/console/overview").status_code
    assert still == (303 if status == 303 else 200)


def test_another_sign_in_has_another_token(server, signed_in):
    _, csrf = signed_in(server.admin_key)
    client, _ = signed_in(server.admin_key)
    assert client.post("/console/sign-out", data={"csrf": csrf}).status_code == 403


def test_every_answer_has_the_security_headers(server, signed_in):
    client, _ = signed_in(server.admin_key)
    style = re.search('href="([^"]*console.css)"', client.get("/console/overview").text)[1]
    for path, kept in [
        ("/console/overview", "no-store"),
        ("/console/sign-in", "no-store"),
        (style, "public, max-age=31536000, immutable"),
        ("/console/nothing", "no-store"),
    ]:
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == kept
    assert client.get("/console/static/0/%2e%2e/sessions.py").status_code == 404
