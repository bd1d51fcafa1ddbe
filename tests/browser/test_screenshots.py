"""Every page under an overload is accessible, and fits wide and narrow windows.

Colours differ in light and dark, the layout in wide and narrow windows: two kinds of window show each
once. The deep test has all four, and takes a picture of each page. This makes the pictures of the guide:

    FAIRSERVE_SCREENSHOTS=docs/images/console .venv/bin/python -m pytest --deep \\
        tests/browser/test_screenshots.py
"""

import pytest
from chromium import NARROW, WIDE
from client_pages import ODD, call, path_of
from console_load import LIMIT, SMALL, Flood
from page_server import PageServer
from pictures import keep, picture_of

from fairserve.platform.console.navigation import navigation

LONG = "look/" + "long" * 20
"""An id that needs a line break."""
PICTURES = {
    "alarms",
    "overview",
    "throttling",
    "refusals",
    "why-refused",
    "clients",
    "client",
    "interactions",
    "run",
    "usage",
    "cluster",
    "audit",
    "sign-in",
}
"""Pages that the guide has pictures of."""
BUCKETS = 14
OPEN_DETAILS = "document.querySelectorAll('main details').forEach((each) => { each.open = true })"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("server"), **SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def pages(server):
    """Return the paths of all pages by name, after a minute of an overload."""
    changed = {"system": "fairserve", "parameters": {"hold_s": 120}}
    server.call(server.admin_key, "PUT", "/admin/throttling", changed)
    app = server.new_app(name="research", limits={"user_rpm": LIMIT})
    key = app["api_key"]
    call(server, key, ODD)
    steps = {"plan": None, "search": "plan", "read": "plan", "write": "search,read"}
    for step, parents in steps.items():
        headers = {"X-Interaction-Id": "report", "X-Agent": step, "X-Call-Id": step}
        headers |= {"X-Parent-Ids": parents} if parents else {}
        call(server, key, "user-0", f"say {step} it", extra_headers=headers)
    server.call(key, "POST", "/v1/interactions/report/close")
    server.call(key, "POST", "/v1/interactions", {"id": LONG, "user": "user-0"})
    price = {"model": "*", "input": 1, "output": 2, "valid_from": "2099-01-31T12:00Z"}
    server.call(server.admin_key, "POST", "/admin/prices", price)
    hook = {"url": "https://1.1.1.1/", "events": ["calls.throttled"], "enabled": False}
    server.call(app["tenant_key"], "POST", "/v1/webhooks", hook)
    server.call(server.admin_key, "PUT", f"/admin/users/{app['tenant_id']}/user-0", {"weight": 2})
    flood = Flood(server, app)
    assert sum(flood.burst(2 + number % 5) for number in range(BUCKETS)) > 0
    server.wait_for(
        "/admin/interactions?state=complete", server.admin_key, lambda found: found["items"]
    )
    newest = server.call(server.admin_key, "GET", "/admin/throttling/events")["items"][0]
    tenant = app["tenant_id"]
    runs = f"/console/interactions/{tenant}/{app['id']}"
    return {
        **{page.name: page.path for page in navigation()},
        "why-refused": f"/console/refusals/{newest['call_id']}",
        "client": path_of(app, "flooder-0"),
        "odd-client": path_of(app, ODD),
        "tenant": f"/console/clients/tenants/{tenant}",
        "app": f"/console/clients/apps/{app['id']}",
        "new-app": f"/console/clients/apps/new?tenant={tenant}",
        "tenant-keys": f"/console/clients/tenants/{tenant}/keys",
        "app-keys": f"/console/clients/apps/{app['id']}/keys",
        "app-users": f"/console/clients/apps/{app['id']}/users?user=user-0",
        "tenant-webhooks": f"/console/webhooks/{tenant}",
        "run": f"{runs}/report",
        "long-run": f"{runs}/{LONG.replace('/', '%2F')}",
        "sign-in": "/console/sign-in",
    }


@pytest.fixture
def open_pages(browser, server, pages):
    """Return a function that opens every page, checks its accessibility, and calls ``see``."""

    def open_all(size, dark, see=lambda visit, name: None):
        with browser.visit(server.url, dark=dark, size=size) as visit:
            visit.sign_in(server.admin_key)
            for name, path in pages.items():
                if name == "sign-in":
                    visit.context.clear_cookies()
                assert visit.open(path) == 200, name
                if visit.page.locator("[data-chart]").count():
                    visit.page.locator("[data-chart] canvas").first.wait_for()
                see(visit, name)
                assert visit.overflow() == 0, name
                visit.page.evaluate(OPEN_DETAILS)
                assert visit.overflow() == 0, f"{name}, opened"
                assert not visit.faults(), f"{name}, opened"

    return open_all


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (NARROW, True)])
def test_every_page_is_accessible(open_pages, size, dark):
    open_pages(size, dark)


@pytest.mark.deep
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_pages_are_drawn(open_pages, size, dark):
    def see(visit, name):
        assert not visit.faults(), name
        picture = picture_of(visit)
        shades = picture.convert("L")
        low, high = shades.getextrema()
        assert high - low > 100, f"{name} is empty"
        ground = shades.getpixel((2, picture.height - 2))
        assert ground < 60 if dark else ground > 200, name
        if name in PICTURES:
            keep(picture, name, wide=size == WIDE, dark=dark)

    open_pages(size, dark, see)
