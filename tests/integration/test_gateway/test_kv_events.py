"""The server follows what its workers cache: its own, and external ones that it is told of."""

import os
import signal

import pytest
from processes import eventually

from fairserve.engine.kv_publisher import KvPublisher, KvPublisherOptions

from .conftest import MODEL


@pytest.fixture(scope="module")
def small(start_server):
    """Workers whose caches hold some two conversations."""
    return start_server("--workers", "2", "--worker-kv-tokens", "1024")


def workers(server):
    return {worker["worker_id"]: worker for worker in server.cluster()["workers"]}


def events(server):
    return {name: worker["kv_events"] for name, worker in workers(server).items()}


def call(server, text, **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
    answer = server.post("/v1/chat/completions", {**body, **more})
    assert answer.status_code == 200, answer.text
    return answer


def test_the_cluster_page_shows_what_workers_told(small):
    for number in range(12):
        call(small, f"Question {number} " * 20)

    def settled():
        told = events(small)
        return any(each and each["events"] > 12 for each in told.values()) and told

    for seen in eventually(settled).values():
        assert seen["connected"]
        assert seen["complete"]
        assert (seen["gaps"], seen["resets"], seen["restarts"], seen["unreadable"]) == (0, 0, 0, 0)
        assert seen["blocks"] <= 64
        assert (seen["last_sequence"] is None) == (seen["events"] == 0)


def test_a_prompt_goes_where_it_is_cached(small):
    first = call(small, "A document that is asked about again. " * 10)
    again = call(small, "A document that is asked about again. " * 10)
    assert again.headers["x-fairserve-worker"] == first.headers["x-fairserve-worker"]
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


def test_a_worker_that_is_killed_is_followed_anew(small):
    before = call(small, "Something in a cache. " * 20).headers["x-fairserve-worker"]
    os.kill(small.worker_pids()[before], signal.SIGKILL)

    def back():
        now = events(small).get(before)
        return now and now["connected"] and now["complete"] and now["blocks"] == 0 and now

    assert eventually(back)["last_sequence"] is None, "another life, from its beginning"
    for number in range(6):
        call(small, f"Afterwards {number} " * 20)
    eventually(lambda: events(small)[before]["blocks"] > 0)


def test_external_workers_are_followed_where_they_are_said_to_publish(start_server, scripted):
    publisher = KvPublisher(KvPublisherOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), list)
    publisher.start()
    try:
        server = start_server(
            "--worker-urls",
            ",".join(worker.url for worker in scripted),
            "--worker-kv-events",
            f"{publisher.endpoint} {publisher.replay_endpoint},",
        )
        seen = eventually(lambda: (told := events(server))["w0"]["complete"] and told)
        assert (seen["w0"]["connected"], seen["w0"]["resets"]) == (True, 0)
        assert seen["w1"] is None, "it says nothing of where it publishes"
    finally:
        publisher.close()


def test_sockets_are_private_and_go_with_the_server(start_server):
    server = start_server("--workers", "1")
    folder = server.data_dir / "sockets"

    def sockets():
        return sorted(path.name.partition("-")[2] for path in folder.iterdir())

    assert folder.stat().st_mode & 0o777 == 0o700
    assert sockets() == ["events", "replays"]
    server.kill()
    server.start()
    assert sockets() == ["events", "replays"], "those of the killed one have gone"
    assert server.stop() == 0
    assert not folder.exists()


def test_events_can_be_switched_off(start_server):
    server = start_server("--workers", "1", "--no-kv-events")
    call(server, "Hello")
    assert events(server) == {"w0": None}
