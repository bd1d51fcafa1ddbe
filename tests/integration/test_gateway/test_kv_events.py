"""The server follows the caches of external workers; embedded ones are in ``test_processes.py``."""

from processes import eventually
from torch_worker import MODEL

from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions


def events(server):
    return {worker["worker_id"]: worker["kv_events"] for worker in server.cluster()["workers"]}


def test_workers_are_followed_at_their_configured_endpoints(start_fleet, scripted):
    publisher = KvPublisher(KvPublisherOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), list)
    publisher.start()
    try:
        endpoints = {"kv_events": publisher.endpoint, "kv_replay": publisher.replay_endpoint}
        workers = [
            {"id": "w0", "url": scripted[0].url, **endpoints},
            {"id": "w1", "url": scripted[1].url},
        ]
        server = start_fleet(workers)
        seen = eventually(lambda: (reported := events(server))["w0"]["complete"] and reported)
        assert (seen["w0"]["connected"], seen["w0"]["resets"]) == (True, 0)
        assert seen["w1"] is None, "it says nothing of where it publishes"
    finally:
        publisher.close()


def test_a_reported_endpoint_is_followed(server):
    prompt = {
        "model": MODEL,
        "prompt": "A description of the worker's cache. " * 4,
        "max_tokens": 1,
    }
    assert server.post("/v1/completions", prompt).status_code == 200
    eventually(lambda: (events(server)["w0"] or {}).get("blocks"))
