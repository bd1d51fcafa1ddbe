"""Event streams end soon after their reader loses access."""

import json
import re
from contextlib import contextmanager

import httpx
import pytest
from constants import defaults
from gateway_server import ADMIN_KEY
from server_client import DEADLINE_S, PROFILE

from fairserve.platform.console import streams
from fairserve.platform.serving.interactions import endpoints

NAMES = iter(range(1000))


@pytest.fixture(scope="module")
def server(start_server, scripted):
    """Return a server that checks the readers of streams very often."""
    urls = ",".join(worker.url for worker in scripted)
    with (
        defaults(endpoints, "while_allowed", every_s=0.05),
        defaults(streams, "while_allowed", every_s=0.05),
    ):
        yield start_server("--worker-urls", urls)


class Owner:
    """A tenant with an app that has an open run."""

    def __init__(self, server):
        self.server = server
        name = f"tenant {next(NAMES)}"
        self.tenant = server.admin("POST", "/admin/tenants", json={"name": name}).json()
        body = {"name": "app", "profile": PROFILE}
        self.app = self.as_tenant("POST", "/v1/apps", json=body).json()
        opened = self.as_app("POST", "/v1/interactions", json={"id": "run"})
        assert opened.status_code == 201, opened.text

    def as_tenant(self, method, path, **more):
        return self.server.request(method, path, self.tenant["api_key"], **more)

    def as_app(self, method, path, **more):
        return self.server.request(method, path, self.app["api_key"], **more)

    @contextmanager
    def following(self):
        """Yield the events of the run as they arrive, after the first one."""
        headers = {"Authorization": f"Bearer {self.app['api_key']}"}
        path = "/v1/interactions/run/events"
        with self.server.http.stream("GET", path, headers=headers) as answer:
            events = events_of(answer)
            assert next(events)[0] == "interaction"
            yield events


def events_of(answer):
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")


@pytest.fixture
def owner(server):
    return Owner(server)


ENDS = {
    "its key is revoked": lambda owner: owner.as_tenant(
        "DELETE", f"/v1/apps/{owner.app['id']}/keys/{owner.app['key']['id']}"
    ),
    "its keys are rotated": lambda owner: owner.as_tenant(
        "POST", f"/v1/apps/{owner.app['id']}/keys/rotate"
    ),
    "its app is suspended": lambda owner: owner.as_tenant(
        "PATCH", f"/v1/apps/{owner.app['id']}", json={"suspended": True}
    ),
    "its app is deleted": lambda owner: owner.as_tenant("DELETE", f"/v1/apps/{owner.app['id']}"),
    "its tenant is deleted": lambda owner: owner.server.admin(
        "DELETE", f"/admin/tenants/{owner.tenant['id']}"
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_event_stream_of_a_run_ends_with_access(owner, end):
    with owner.following() as events:
        assert end(owner).status_code in (200, 201)
        ((name, data),) = events
    assert name == "error"
    assert json.loads(data)["error"]["type"] == "authentication_error"


def test_streams_of_other_readers_continue(server, owner):
    other = Owner(server)
    with owner.following() as ending, other.following() as lasting:
        owner.as_tenant("DELETE", f"/v1/apps/{owner.app['id']}")
        assert [name for name, _ in ending] == ["error"]
        assert other.as_app("POST", "/v1/interactions/run/close").status_code == 200
        assert [name for name, _ in lasting] == ["interaction"]


@pytest.fixture
def browser(server):
    """Yield a function that returns a browser signed in with a key."""
    browsers = []

    def sign_in(key):
        browser = httpx.Client(base_url=server.url, timeout=DEADLINE_S)
        browsers.append(browser)
        assert browser.post("/console/sign-in", data={"key": key}).status_code == 303
        return browser

    yield sign_in
    for browser in browsers:
        browser.close()


def sign_out(browser):
    csrf = re.search('name="csrf" value="([0-9a-f]{64})"', browser.get("/console/audit").text)[1]
    return browser.post("/console/sign-out", data={"csrf": csrf})


@pytest.mark.parametrize("end", ["its key is revoked", "it signs out"])
def test_live_page_ends_with_access(server, owner, browser, end):
    keys = f"/admin/tenants/{owner.tenant['id']}/keys"
    browsing = browser(owner.tenant["api_key"])
    with browsing.stream("GET", "/console/overview/stream") as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert next(lines) == "retry: 3000", "it is open"
        if end == "it signs out":
            assert sign_out(browsing).status_code == 303
        else:
            key = owner.tenant["key"]["id"]
            assert server.request("DELETE", f"{keys}/{key}", ADMIN_KEY).status_code == 200
        assert [line for line in lines if line][-2:] == ["event: over", "data: signed out"]
