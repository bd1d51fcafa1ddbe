"""While the database is away, a server answers from memory, within bounds, and says so."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
import yaml
from database_proxy import proxied
from processes import eventually
from promtool import promtool
from served_app import served
from server_client import DEADLINE_S, NO_TLS
from whole_server import WholeServer

from fairserve.platform.console.guard import COOKIE
from fairserve.platform.console.sessions import begin
from fairserve.platform.console.trusted_sessions import TRUSTED_S
from fairserve.platform.db import engine, watch
from fairserve.platform.db.base import utc_now
from fairserve.platform.tenancy.auth import OPERATOR_STALE_S, STALE_S

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/alerts.yaml"
SINCE = re.compile(
    r"needs the database, which does not answer since"
    r' <time datetime="20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ">20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC</time>'
)
OVERVIEW = "/console/overview"


@pytest.fixture(scope="module")
def proxy(new_postgres_url):
    with proxied(new_postgres_url()) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def server(proxy, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "PROBE_S", 0.02)
        patch.setattr(watch, "ANSWER_S", 1.0)
        patch.setattr(engine, "MANAGEMENT_CONNECT_S", 2)
        folder = tmp_path_factory.mktemp("server") / "data"
        with (
            WholeServer(folder, database_url=proxy.url, secret_key="s" * 40) as server,
            served(server.client) as server.url,
        ):
            yield server


@pytest.fixture
def away(server, proxy):
    """Return a function that takes the database away until the end of the test."""
    database = server.platform.storage.watch

    def take():
        proxy.cut()
        eventually(lambda: database.away_since)

    yield take
    proxy.restore()
    eventually(lambda: database.away_since is None)


@pytest.fixture
def browser(server):
    """Return a function that returns a client with a cookie, by default of a sign-in with a key."""
    clients = []

    def connect(token=None, key=server.admin_key):
        client = httpx.Client(base_url=server.url, timeout=DEADLINE_S, verify=NO_TLS)
        clients.append(client)
        if token is None:
            client.post("/console/sign-in", data={"key": key})
            assert client.get(OVERVIEW).status_code == 200
        else:
            client.cookies.set(COOKIE, token)
        return client

    yield connect
    for client in clients:
        client.close()


def session_elsewhere(server):
    """Return the cookie of a session that another server began."""
    platform = server.platform
    principal = asyncio.run(platform.storage.authenticator.authenticate(server.admin_key))
    with platform.sessions.begin() as session:
        return begin(session, principal, platform.settings.tenancy, utc_now())


def turn(monkeypatch, part, seconds):
    """Let the clock of a part show a later time."""
    clock = part._monotonic_s
    monkeypatch.setattr(part, "_monotonic_s", lambda: clock() + seconds)


def test_the_alert_fires_after_the_key_of_the_scraper_left_its_cache(
    server, away, monkeypatch, tmp_path
):
    def scrape():
        server.platform.metrics._until_s = 0.0  # a scrape of its own
        return server.request("GET", "/metrics", server.admin_key)

    keys = server.platform.storage.authenticator
    assert scrape().status_code == 200
    away()
    turn(monkeypatch, keys, 2 * STALE_S)
    answer = scrape()
    assert answer.status_code == 200
    assert "fairserve_ledger_lag_bytes" in answer.text
    (value,) = re.findall(r"^fairserve_database_up (\S+)$", answer.text, re.MULTILINE)
    firing = 'count(ALERTS{alertname="FairServeDatabaseDown",alertstate="firing"})'
    found = {
        "interval": "15s",
        "input_series": [
            {"series": 'fairserve_database_up{instance="a"}', "values": f"{value}x20"}
        ],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }
    case = tmp_path / "case.yaml"
    case.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [found]}))
    promtool("test", "rules", str(case))
    turn(monkeypatch, keys, OPERATOR_STALE_S)
    assert scrape().status_code == 503


def test_a_checked_session_is_valid_for_a_bounded_time(server, away, browser, monkeypatch):
    known, unknown = browser(), browser(session_elsewhere(server))
    away()
    answer = known.get(OVERVIEW)
    assert answer.status_code == 200
    assert "The database does not answer" in answer.text
    assert unknown.get(OVERVIEW).status_code == 503
    turn(monkeypatch, server.app.state.console.sessions, TRUSTED_S)
    assert known.get(OVERVIEW).status_code == 503


def test_a_sign_out_holds_without_the_database_and_after_it(server, away, browser, proxy):
    signed_in = browser()
    token = signed_in.cookies[COOKIE]
    csrf = re.search(r'name="csrf" value="(\w+)"', signed_in.get(OVERVIEW).text)[1]
    away()
    answer = signed_in.post("/console/sign-out", data={"csrf": csrf})
    assert answer.status_code == 303
    assert browser(token).get(OVERVIEW).status_code == 503
    proxy.restore()
    eventually(lambda: server.platform.storage.watch.away_since is None)
    assert browser(token).get(OVERVIEW).is_redirect


def test_a_revoked_key_ends_its_session_before_an_outage(server, away, browser):
    tenant = server.new_tenant("revoked")
    keys = f"/admin/tenants/{tenant['id']}/keys"
    key = server.call(server.admin_key, "POST", keys, status=201)
    client = browser(key=key["api_key"])
    server.call(server.admin_key, "DELETE", f"{keys}/{key['id']}")
    away()
    assert client.get(OVERVIEW).status_code == 503


@pytest.mark.parametrize("page", ["usage", "throttling"])
def test_a_page_that_needs_the_database_names_it(away, browser, page):
    client = browser()
    away()
    answer = client.get(f"/console/{page}")
    assert answer.status_code == 503
    assert SINCE.search(answer.text)


def test_no_request_waits_for_a_database_that_hangs(server, away, browser, proxy):
    client = browser()
    assert client.get("/console/audit").status_code == 200
    proxy.hang()
    assert client.get("/console/audit").status_code == 503, "its connection ends"
    assert client.get(OVERVIEW).status_code == 200
    assert server.platform.storage.watch.away_since is not None
