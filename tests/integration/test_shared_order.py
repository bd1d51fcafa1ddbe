"""Servers share one fair order through Redis: any takes calls, and the death of one loses none.

Whatever a client does at one server holds at the others.
"""

import concurrent.futures
import re
import sys

import httpx
import pytest
from processes import eventually
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from server_client import DEADLINE_S
from shared_servers import SharedServers

from fairserve.platform.console.sign_in.limit import MAX_WRONG
from fairserve.platform.server import cli

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def worker():
    worker = ScriptedWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory):
    redis = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield redis
    redis.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory, new_postgres_url, own_redis, worker):
    servers = SharedServers(
        tmp_path_factory.mktemp("servers"), new_postgres_url(), own_redis.url, worker.url
    )
    servers.start(control="control", standby="control", first="api", second="api")
    yield servers
    servers.close()


@pytest.fixture
def both(servers):
    return servers["first"], servers["second"]


def chat(server, app, text="ok", *, key=None):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    headers = {} if key is None else {"Idempotency-Key": key}
    return server.post(CHAT, body, key=app["api_key"], headers=headers)


def accepted(server, app, text, key):
    """Return the answer, once keys are accepted: not in the first seconds of a cell."""
    found = []

    def ask():
        found[:] = [chat(server, app, text, key=key)]
        return found[0].status_code != 503

    eventually(ask, lambda: found[0].text)
    return found[0]


def in_turns(servers, number):
    return servers[("first", "second")[number % 2]]


def has_rows(servers, app, expected):
    """Wait for exactly these outcomes in the ledger."""

    def found():
        outcomes = [outcome for outcome, _ in servers.rows(app["id"])]
        return sorted(outcomes) == sorted(expected)

    eventually(found, lambda: str(servers.rows(app["id"])))


def test_a_quota_is_exact_over_all_servers(servers):
    app = servers["first"].new_app(name="quota", contract={"rpm_limit": 7})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda n: chat(in_turns(servers, n), app), range(20))]
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] * 7 + [429] * 13
    has_rows(servers, app, ["completed"] * 7 + ["refused"] * 13)


def test_api_servers_share_a_port_and_no_other_does(servers, tmp_path, monkeypatch, capsys):
    first = servers["first"]
    app = first.new_app(name="one port")
    servers.start(port=first.port, third="api")
    third = servers.servers.pop("third")

    def process():
        """Return when the process started that a new connection reaches."""
        admin = {"Authorization": f"Bearer {first.admin_key}"}
        metrics = httpx.get(f"{first.url}/metrics", headers=admin, timeout=60).text
        return re.search(r"^process_start_time_seconds (.+)$", metrics, re.M)[1]

    found = set()
    eventually(lambda: found.add(process()) or len(found) == 2)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    headers = {"Authorization": f"Bearer {app['api_key']}"}
    calls = [httpx.post(first.url + CHAT, json=body, headers=headers, timeout=60) for _ in range(8)]
    assert {call.status_code for call in calls} == {200}
    has_rows(servers, app, ["completed"] * 8)
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval_s: None)
    for name, value in servers.env.items():
        monkeypatch.setenv(name, value)
    alone = ["serve", "--data-dir", str(tmp_path), "--port", str(first.port), "--role"]
    for role in ("all", "control"):
        assert cli.main([*alone, role]) == 1
        assert f"port {first.port} is in use" in capsys.readouterr().err
    third.stop()
    assert len({process() for _ in range(8)}) == 1


def test_a_server_that_would_decide_otherwise_ends_with_the_cause(servers):
    (server,) = servers.launch({"FAIRSERVE_MAX_QUEUED_CALLS": "7"}, other="api").values()
    assert server.process.wait(DEADLINE_S) == 1
    assert "Traceback" not in server.log()
    assert server.log().splitlines()[-1] == (
        "fairserve: the other processes of the cell would decide otherwise: max_queued_calls is 7 here"
        " and 10000 there. Make them equal, or stop the others first"
    )


def test_a_run_continues_at_any_server(servers, worker):
    first, second = servers["first"], servers["second"]
    app = first.new_app(name="runs")
    key, run = app["api_key"], {"headers": {"X-Interaction-Id": "r"}}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    stages = [
        server.post(CHAT, body, key=key, **run).headers["x-fairserve-stage"]
        for server in (first, second, first)
    ]
    assert stages == ["1", "2", "3"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        held = {**body, "messages": [{"role": "user", "content": "hold r"}]}
        running = pool.submit(first.post, CHAT, held, key=key, **run)
        eventually(lambda: "r" in worker.holding)
        view = second.call(key, "GET", "/v1/interactions/r")
        assert (view["calls"], view["live_calls"]) == (4, 1)
        assert second.request("DELETE", "/v1/interactions/r", key).status_code < 300
        stopped = running.result(30)
        assert "its interaction was cancelled" in stopped.text
    has_rows(servers, app, ["completed"] * 3 + ["cancelled"])


def test_a_server_that_waits_for_control_can_be_stopped(tmp_path, new_postgres_url, worker):
    redis = RedisProcess(tmp_path / "redis")
    alone = SharedServers(tmp_path, new_postgres_url(), redis.url, worker.url)
    try:
        server = alone.launch(api="api")["api"]
        eventually(lambda: "no control process has begun the cell" in server.log(), server.log)
        assert server.stop() == 0
    finally:
        alone.close()
        redis.close()


def test_settings_of_one_server_are_in_force_at_all(servers):
    first, second = servers["first"], servers["second"]
    app = first.new_app(name="settings")
    limit = {"contract": {"rpm_limit": 1}}
    second.call(app["tenant_key"], "PATCH", f"/v1/apps/{app['id']}", limit)
    assert [chat(server, app).status_code for server in (first, second)] == [200, 429]


# --- idempotent answers -------------------------------------------------------------------------------


def test_a_repeated_key_gets_the_one_answer_at_any_server(both, servers):
    first, second = both
    app = first.new_app(name="repeated")
    answer = accepted(first, app, "say one two", "k")
    assert answer.status_code == 200
    again = eventually(lambda: chat(second, app, "say one two", key="k"))
    assert again.json() == answer.json()
    assert again.headers["x-fairserve-replayed"] == "true"
    assert chat(second, app, "say three", key="k").status_code == 422
    other = first.new_app(name="another app")
    assert "x-fairserve-replayed" not in chat(second, other, "say one two", key="k").headers
    eventually(lambda: len(servers.rows(app["id"])) == 1, lambda: str(servers.rows(app["id"])))


def test_a_repeated_key_waits_for_the_call_at_another_server(both, servers, worker):
    first, second = both
    app = first.new_app(name="waits")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(accepted, first, app, "hold shared", "k")
        eventually(lambda: "shared" in worker.holding)
        waiting = pool.submit(chat, second, app, "hold shared", key="k")
        eventually(lambda: chat(second, app).status_code == 200)
        assert not waiting.done()
        worker.release()
        one, other = running.result(60), waiting.result(60)
    assert (one.status_code, other.status_code) == (200, 200)
    assert one.json() == other.json()
    assert worker.holding.count("shared") == 1, "the worker got one call"


# --- keys and settings --------------------------------------------------------------------------------


def test_a_key_that_one_server_revokes_ends_at_the_other(both):
    first, second = both
    app = first.new_app(name="revoked")
    assert chat(second, app).status_code == 200
    keys = first.call(app["tenant_key"], "GET", f"/v1/apps/{app['id']}/keys")["items"]
    for key in keys:
        first.call(app["tenant_key"], "DELETE", f"/v1/apps/{app['id']}/keys/{key['id']}")
    assert chat(first, app).status_code == 401
    eventually(lambda: chat(second, app).status_code == 401)


def test_throttling_of_one_server_is_in_force_at_all(both, servers):
    first, second = both
    seen = first.call(first.admin_key, "GET", "/admin/throttling")
    change = {"system": seen["system"], "parameters": {}}
    first.call(first.admin_key, "PUT", "/admin/throttling", change)
    for server in (second, servers["control"]):
        there = server.call(server.admin_key, "GET", "/admin/throttling")
        assert there["version"] == seen["version"] + 1
        eventually(lambda server=server: server.cluster()["system"] == seen["system"])


def test_failed_sign_ins_at_all_servers_have_one_limit(both):
    def sign_in(server, key):
        return server.http.post("/console/sign-in", data={"key": key}).status_code

    codes = [sign_in(both[number % 2], f"wrong {number}") for number in range(MAX_WRONG + 2)]
    assert codes == [401] * MAX_WRONG + [429] * 2
    assert sign_in(both[0], both[0].admin_key) == 429


# --- faults ---------------------------------------------------------------------------------------


def test_another_control_server_speaks_after_a_kill(servers, worker):
    first, second = servers["first"], servers["second"]
    app = first.new_app(name="takeover")
    speaker = eventually(servers.speaker)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(chat, first, app, "hold on")
        eventually(lambda: "on" in worker.holding)
        speaker.kill()
        eventually(lambda: servers.speaker() not in (None, speaker))
        assert chat(second, app).status_code == 200
        worker.release()
        assert running.result(30).status_code == 200, "streams are untouched"
    has_rows(servers, app, ["completed"] * 2)
    name = next(name for name, each in servers.servers.items() if each is speaker)
    servers.start(**{name: "control"})


def test_a_redis_that_returns_empty_loses_no_call(servers, worker, own_redis):
    first, second = servers["first"], servers["second"]
    app = first.new_app(name="redis", contract={"rpm_limit": 3})
    eventually(servers.speaker)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(chat, first, app, "hold again")
        eventually(lambda: "again" in worker.holding)
        own_redis.kill()
        waiting = pool.submit(chat, second, app)
        own_redis.start()
        worker.release()
        assert running.result(60).status_code == 200
        answer = waiting.result(60)
    expected = ["completed"] + (["completed"] if answer.status_code == 200 else [])
    more = eventually(lambda: (found := chat(first, app)).status_code != 503 and found)
    assert more.status_code == 200
    has_rows(servers, app, [*expected, "completed"])
    assert {chat(in_turns(servers, n), app).status_code for n in range(2)} == {
        429 if len(expected) == 2 else 200,
        429,
    }, "the counters are those from before"
