"""A pool of prefill and decode engines behind a proxy is one worker, whose engines publish KV events."""

import concurrent.futures

import pytest
from disaggregated_pool import DisaggregatedPool
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.engine.kv_events.dialect import BlockRemoved, BlockStored
from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions

PATH = "/v1/completions"
BLOCKS = 5
KV_TOKENS = 8192


def publisher(events="tcp://127.0.0.1:0", replay="tcp://127.0.0.1:0"):
    started = KvPublisher(KvPublisherOptions(events, replay), list)
    started.start()
    return started


@pytest.fixture
def engines():
    """Yield the publishers of two prefill engines, which a test may replace."""
    found = [publisher(), publisher()]
    yield found
    for each in found:
        each.close()


@pytest.fixture
def pool():
    pool = DisaggregatedPool()
    yield pool
    pool.close()


def worker_of(pool, engines):
    return {
        "id": "pool",
        "url": pool.url,
        "kv_tokens": KV_TOKENS,
        "kv_events": ",".join(each.endpoint for each in engines),
        "kv_replay": ",".join(each.replay_endpoint for each in engines),
    }


def seen(server):
    return {each["worker_id"]: each for each in server.cluster()["workers"]}.get("pool", {})


def call(server, text):
    return server.post(PATH, {"model": "scripted", "prompt": text, "max_tokens": 20})


def test_a_call_of_both_phases_is_one_call(start_fleet, pool, engines):
    server = start_fleet([worker_of(pool, engines)])
    assert call(server, "ok").status_code == 200
    assert server.cluster()["capacity_tokens"] == seen(server)["kv_capacity_tokens"] == KV_TOKENS
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        answer = threads.submit(call, server, "hold both")
        for engine in (pool.prefill, pool.decode):
            eventually(lambda engine=engine: engine.holding == ["both"])
            state = seen(server)
            assert (state["calls"], state["sequences"]) == (1, 1)
            assert 0 < server.cluster()["demand_tokens"] == state["demand_tokens"] < 40
            engine.release()
        answer = answer.result()
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert [each["prompt"] for each in pool.prefill.bodies] == ["ok", "hold both"]
    assert [each["max_tokens"] for each in pool.prefill.bodies + pool.decode.bodies] == [
        1,
        1,
        20,
        20,
    ]
    row = server.row(call_id=answer.headers["x-request-id"])
    assert len(server.rows(interaction_id=row["interaction_id"])) == 1
    assert (row["worker"], row["input_tokens"] + row["system_tokens"]) == ("pool", 12)
    assert (row["cached_tokens"], row["output_tokens"]) == (4, 3)


def test_the_pool_has_what_any_of_its_engines_has(start_fleet, pool, engines):
    other = ScriptedWorker(tokenizes=True)
    server = start_fleet([{"id": "w0", "url": other.url}])
    assert call(server, "ok").status_code == 200
    salt = other.bodies[0]["cache_salt"]
    server.admin("POST", "/admin/cluster/workers", json=worker_of(pool, engines))
    eventually(lambda: (seen(server).get("kv_events") or {}).get("complete"))

    def is_in_the_pool(name):
        return call(server, text_of(name)).headers["x-fairserve-worker"] == "pool"

    def blocks(count):
        eventually(lambda: seen(server)["kv_events"]["blocks"] == BLOCKS * count)

    for place, name in (
        (0, "a"),
        (0, "b"),
        (1, "b"),
        (1, "c"),
        (0, "d"),
        (1, "d"),
        (0, "e"),
        (1, "e"),
    ):
        engines[place].put([stored(name, salt)])
    blocks(8)
    assert is_in_the_pool("a")
    engines[1].put([BlockRemoved(hashes("b"), "GPU")])
    engines[0].put([BlockRemoved(hashes("d"), "GPU")])
    engines[1].put([BlockRemoved(hashes("d"), "GPU")])
    blocks(5)
    assert is_in_the_pool("b"), "the other engine has it still"
    assert not is_in_the_pool("d")
    ends = engines[1].endpoint, engines[1].replay_endpoint
    engines[1].close()
    engines[1] = publisher(*ends)  # its process starts again, with an empty cache
    engines[1].put([stored("f", salt)])
    eventually(lambda: seen(server)["kv_events"]["restarts"] == 1)
    blocks(4)
    assert seen(server)["cache_view"] == "worker"
    assert not is_in_the_pool("c")
    assert is_in_the_pool("e")
    assert is_in_the_pool("f")
    other.close()


def text_of(name):
    return f"ok: the prompt {name}".ljust(16 * BLOCKS, ".")


def hashes(name):
    return [ord(name) << 8 | place for place in range(BLOCKS)]


def stored(name, salt):
    extra = [[salt], *[None] * (BLOCKS - 1)]
    tokens = list(text_of(name).encode())
    return BlockStored(hashes(name), None, tokens, 16, medium="GPU", extra_keys=extra)
