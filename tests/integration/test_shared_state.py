"""Whatever a client does at one server holds at the others that share its order."""

import concurrent.futures
import contextlib

import pytest
from processes import eventually
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from shared_servers import SharedServers

from fairserve.platform.console.sign_in.limit import MAX_WRONG

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def worker():
    with contextlib.closing(ScriptedWorker()) as worker:
        yield worker


@pytest.fixture(scope="module")
def own_redis(redis_server, tmp_path_factory):
    with contextlib.closing(RedisProcess(tmp_path_factory.mktemp("redis"))) as redis:
        yield redis


@pytest.fixture(scope="module")
def servers(tmp_path_factory, new_postgres_url, own_redis, worker):
    servers = SharedServers(
        tmp_path_factory.mktemp("servers"), new_postgres_url(), own_redis.url, worker.url
    )
    with contextlib.closing(servers):
        servers.start(control="control", first="api", second="api")
        yield servers


@pytest.fixture
def both(servers):
    return servers["first"], servers["second"]


def chat(server, app, text="ok", *, key=None, **more):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
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
