"""Every page as an operator sees it under load, wide and narrow, light and dark.

With ``FAIRSERVE_SCREENSHOTS=docs/images/console`` the pictures of the guide are made anew.
"""

import io
import os
from pathlib import Path

import pytest
from browser import NARROW, WIDE
from console_load import SMALL, Load
from live_server import LiveServer
from PIL import Image

PAGES = {
    "overview": "/console/overview",
    "throttling": "/console/throttling",
    "refusals": "/console/refusals",
    "why-refused": None,
    "clients": "/console/clients",
    "client": None,
    "interactions": "/console/interactions",
    "run": None,
    "usage": "/console/usage",
    "cluster": "/console/cluster",
    "audit": "/console/audit",
    "sign-in": "/console/sign-in",
}
COLOURS = 96
MOST_PIXELS = 2200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("server"), **SMALL) as running:
        app = running.new_app(name="research", limits={"user_rpm": 20})
        with Load(running, app["api_key"]) as load:
            running.wait_for(
                "/admin/live?buckets=24",
                running.admin_key,
                lambda live: len(live["at"]) >= 14 and live["activity"]["refused"],
            )
            load.pause_s = 1.0  # enough to look at, and leaves the browser some of the machine
            running.app = app
            yield running


def path_of(server, name):
    """Of a page that shows one thing: the newest one."""
    if name == "why-refused":
        newest = server.admin("GET", "/admin/throttling/events")["items"][0]
        return f"/console/refusals/{newest['call_id']}"
    if name == "client":
        return f"/console/clients/{server.app['tenant_id']}/{server.app['id']}/flooder-0"
    if name == "run":
        run = server.admin("GET", "/admin/interactions?state=complete")["data"][0]
        return f"/console/interactions/{run['tenant']}/{run['app']}/{run['id']}"
    return PAGES[name]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_pages_as_they_are_seen(browser, server, size, dark):
    with browser.visit(server.url, dark=dark, size=size) as visit:
        visit.sign_in(server.admin_key)
        for name in PAGES:
            if name == "sign-in":
                visit.context.clear_cookies()
            assert visit.go(path_of(server, name)) == 200, name
            if visit.page.locator("[data-chart]").count():
                visit.page.wait_for_selector("[data-chart] canvas")
            assert visit.overflow() == 0, name
            assert not visit.faults(), name
            look(visit, name, size, dark)


def look(visit, name, size, dark):
    """Take the picture, see that there is something on it, and keep it where somebody asked for it."""
    # What sticks to the window's edge would be drawn amid a page that is longer.
    unstick = (
        "document.querySelectorAll('.bar').forEach((bar) => { bar.style.position = 'static' })"
    )
    visit.page.evaluate(unstick)
    taken = visit.page.screenshot(full_page=True)
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    shades = picture.convert("L")
    low, high = shades.getextrema()
    assert high - low > 100, f"{name} is empty"
    ground = shades.getpixel((2, picture.height - 2))
    assert ground < 60 if dark else ground > 200, name
    folder = os.environ.get("FAIRSERVE_SCREENSHOTS")
    if folder:
        kind = f"{'wide' if size == WIDE else 'narrow'}-{'dark' if dark else 'light'}"
        picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_PIXELS)))
        small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
        Path(folder).mkdir(parents=True, exist_ok=True)
        small.save(Path(folder) / f"{name}-{kind}.png", optimize=True)
