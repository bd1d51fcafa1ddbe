"""LoRA adapters of a worker are models that share its queue, and have cached prefixes of their own."""

import concurrent.futures

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.engine.kv_events.dialect import BlockStored
from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions
from fairserve.platform.fleet import watch

PATH = "/v1/completions"
LONG = "A text that is long enough for some blocks of the router. " * 4


@pytest.fixture(scope="module")
def workers():
    """Yield three workers: all have the adapter ``law``, all but the last one ``sql``."""
    adapters = ["law", "sql"], ["law", "sql"], ["law"]
    found = [ScriptedWorker(adapters=each, tokenizes=True) for each in adapters]
    yield found
    for worker in found:
        worker.close()


@pytest.fixture(scope="module")
def publishers():
    """Yield a real publisher of KV events for each worker."""
    ends = KvPublisherOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    found = [KvPublisher(ends, list) for _ in range(3)]
    for publisher in found:
        publisher.start()
    yield found
    for publisher in found:
        publisher.close()


@pytest.fixture(scope="module")
def server(start_fleet, workers, publishers):
    fleet = [
        {"id": f"w{n}", "url": w.url, "kv_events": p.endpoint, "kv_replay": p.replay_endpoint}
        for n, (w, p) in enumerate(zip(workers, publishers, strict=True))
    ]
    server = start_fleet(fleet, aliases={"jurist": "law"})
    eventually(lambda: len([each for each in events(server) if each["complete"]]) == 3)
    eventually(lambda: len(models(server)) == 4)
    return server


def events(server):
    """Return the statistics of the KV events of ``w0``, ``w1`` and ``w2``."""
    workers = sorted(server.cluster()["workers"], key=lambda worker: worker["worker_id"])
    return [worker["kv_events"] for worker in workers]


def models(server):
    listing = server.request("GET", "/v1/models", server.app_key)
    return {each["id"]: each.get("parent") for each in listing.json()["data"]}


def call(server, model, text="ok"):
    return server.post(PATH, {"model": model, "prompt": text, "max_tokens": 20})


def placed(server, model, text):
    return call(server, model, text).headers["x-fairserve-worker"]


def stored(text, salt, adapter):
    """Return the event with which a worker has stored the blocks of a prompt."""
    tokens = list(text.encode())[: len(text) // 16 * 16]
    blocks, own = len(tokens) // 16, [adapter] if adapter else []
    return BlockStored(
        [hash((text, adapter, n)) & (1 << 63) - 1 for n in range(blocks)],
        None,
        tokens,
        16,
        lora_id=1 if adapter else None,
        medium="GPU",
        lora_name=adapter,
        extra_keys=[[*own, salt], *[own or None] * (blocks - 1)],
    )


def test_adapters_are_models_with_the_workers_of_their_base(server, workers):
    assert models(server) == {"scripted": None} | dict.fromkeys(
        ("law", "sql", "jurist"), "scripted"
    )
    assert server.http.get("/health/readiness").json()["workers"] == 3
    assert [each["model"] for each in server.cluster()["models"]] == ["scripted"], "one pool"
    prices = (
        {"model": "scripted", "input": 1, "output": 2},
        {"model": "sql", "input": 3, "output": 4},
    )
    base, own = (server.admin("POST", "/admin/prices", json=each).json()["id"] for each in prices)
    expected = ("scripted", "scripted", base), ("sql", "sql", own), ("jurist", "law", base)
    for name, served, price in expected:
        answer = call(server, name)
        assert answer.headers["x-fairserve-model"] == served
        assert answer.json()["model"] == name
        row = server.row(call_id=answer.headers["x-request-id"])
        assert (row["model"], row["served_model"], row["price_id"]) == (name, served, price)
        assert workers[int(row["worker"][1:])].bodies[-1]["model"] == served


@pytest.mark.parametrize(("owner", "other"), [(None, "law"), ("law", None), ("law", "sql")])
def test_a_prefix_is_matched_by_its_own_model_only(server, workers, publishers, owner, other):
    call(server, "scripted")
    salt = next(body for worker in workers for body in worker.bodies)["cache_salt"]
    text, others_home = f"{owner} {other}: {LONG}", placed(server, other or "scripted", "ok")
    place = 0 if others_home == "w1" else 1
    before = events(server)[place]["blocks"]
    publishers[place].put([stored(text, salt, owner)])
    eventually(lambda: events(server)[place]["blocks"] == before + len(text) // 16)
    assert placed(server, other or "scripted", text) == others_home
    assert placed(server, owner or "scripted", text) == f"w{place}"


def test_an_adapter_is_called_only_where_it_is(server):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: call(server, "sql", f"ok {n} {LONG}"), range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-fairserve-worker"] for answer in answers} == {"w0", "w1"}


def test_adapters_are_loaded_and_unloaded_while_a_worker_serves(server, workers, monkeypatch):
    monkeypatch.setattr(watch, "LISTING_S", 0.1)
    workers[2].adapters = ["tax"]
    eventually(lambda: models(server).keys() == {"scripted", "law", "sql", "tax", "jurist"})
    assert placed(server, "tax", "ok") == "w2"
    for worker in workers:
        worker.adapters = ["law"]
    eventually(lambda: models(server).keys() == {"scripted", "law", "jurist"})
    unknown = call(server, "tax")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
