"""Every page as an operator sees it under load, wide and narrow, light and dark.

With ``FAIRSERVE_SCREENSHOTS=docs/images/console`` the pictures of the guide are made anew.
"""

import io
import os
from pathlib import Path

import pytest
from browser import NARROW, WIDE
from console_load import Load
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
    with LiveServer(
        tmp_path_factory.mktemp("server"),
        workers=2,
        worker_kv_tokens=512,
        overload_high=0.3,
        overload_low=0.2,
    ) as running:
        app = running.new_app(name="research", limits={"user_rpm": 20})
        with Load(running, app["api_key"]):
            running.wait_for(
                "/admin/live?buckets=24",
                running.admin_key,
                lambda live: len(live["at"]) >= 14 and live["activity"]["refused"],
                deadline_s=120,
            )
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
@pytest.mark.parametrize("name", PAGES)
def test_a_page_as_it_is_seen(browser, server, name, size, dark):
    with browser.visit(server.url, dark=dark, size=size) as visit:
        if name != "sign-in":
            visit.sign_in(server.admin_key)
        assert visit.go(path_of(server, name)) == 200
        if visit.page.locator("[data-chart]").count():
            visit.page.wait_for_selector("[data-chart] canvas")
        assert visit.overflow() == 0
        assert not visit.faults()
        picture = Image.open(io.BytesIO(visit.page.screenshot(full_page=True)))
        shades = picture.convert("L").getextrema()
        assert shades[1] - shades[0] > 100, "an empty page"
        ground = picture.convert("L").getpixel((2, picture.height - 2))
        assert ground < 60 if dark else ground > 200
    folder = os.environ.get("FAIRSERVE_SCREENSHOTS")
    if folder:
        look = f"{'wide' if size == WIDE else 'narrow'}-{'dark' if dark else 'light'}"
        picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_PIXELS)))
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        small.save(target / f"{name}-{look}.png", optimize=True)
