"""Test the console of ``fairserve serve``, as a separate process with the torch engine behind it."""

import json

import httpx
import pytest
from client_pages import call
from gateway_server import ChildServer

from fairserve.platform.console.sign_in_limit import MAX_WRONG

STREAM = "/console/overview/stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("server") / "data"
    with ChildServer(data_dir, workers=1, log_level="warning") as running:
        yield running


@pytest.fixture(scope="module")
def session(server):
    """Return a session of an operator who signed in before the wrong keys."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.post("/console/sign-in", data={"key": server.admin_key}, timeout=60)
        yield client


def test_calls_are_shown_while_they_run(browser, server, session):
    app = server.new_app(name="real")
    (cookie,) = session.cookies.jar
    with browser.visit(server.url) as visit:
        visit.context.add_cookies(
            [{"name": cookie.name, "value": cookie.value, "url": f"{server.url}/console"}]
        )
        visit.open("/console/overview")
        visit.page.locator(".live.on").wait_for()
        call(server, app["api_key"], "eve", "a few words", max_tokens=5)
        visit.page.locator("[data-chart=service][aria-label*=eve]").wait_for()
        assert not visit.faults()
        assert visit.open("/console/cluster") == 200
        worker = visit.page.locator("#worker-w0")
        worker.get_by_text("serving").wait_for()
        data = json.loads(visit.page.locator("#chart-data").inner_text())
        assert data["kv"]["series"][0]["label"] == "w0"


def test_wrong_keys_are_counted_and_reveal_nothing(server, session):
    for _ in range(MAX_WRONG):
        answer = httpx.post(
            f"{server.url}/console/sign-in", data={"key": "sk-fs-a-guess"}, timeout=60
        )
        assert answer.status_code == 401
        assert "unknown or revoked" in answer.text
        assert "guess" not in answer.text
    answer = httpx.post(f"{server.url}/console/sign-in", data={"key": server.admin_key}, timeout=60)
    assert answer.status_code == 429, "the right one, too: who guesses learns nothing"
    assert 200 < int(answer.headers["retry-after"]) <= 301
    assert "guess" not in server.log()
    assert server.admin_key not in server.log()


def test_live_pages_do_not_delay_a_stop(server, session):
    first = session.send(session.build_request("GET", STREAM), stream=True)
    assert next(first.iter_lines()) == "retry: 3000"
    assert server.stop() == 0
    first.close()
