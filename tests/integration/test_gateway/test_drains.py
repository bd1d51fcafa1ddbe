"""Workers of the settings, the file and the server itself are drained, taken back, and restarted."""

import concurrent.futures
import os
import signal

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

from .conftest import ADMIN_KEY, MODEL
from .test_fleet import PATH, WORKERS, FleetFile, becomes, body, call, listed, more, states, traffic

SERVING = {"w0": ("embedded", "serving"), "w1": ("embedded", "serving")}
RESTING = SERVING | {"w0": ("embedded", "drained")}
BY = ADMIN_KEY[:4]
"""As much as is told of a key that is not of ours."""
LONG = {"max_tokens": 600, "ignore_eos": True}


@pytest.fixture(scope="module")
def embedded(start_server):
    """Two real workers; every test leaves them serving."""
    server = start_server("--workers", "2")
    becomes(server, SERVING)
    return server


def drain(server, worker_id, what="drain"):
    answer = server.admin("POST", f"{WORKERS}/{worker_id}/{what}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(server, **more):
    """The worker of a call that ended well."""
    answer = call(server, model=MODEL, **more)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-fairserve-worker"]


def ask_side_by_side(server, calls=8):
    """The workers of calls that run at once, so that idle workers get some."""
    with concurrent.futures.ThreadPoolExecutor(calls) as threads:
        running = [threads.submit(ask, server, text=f"call {n}") for n in range(calls)]
        return {each.result() for each in running}


def test_calls_of_a_drained_embedded_worker_end_well_and_it_serves_again(embedded):
    server = embedded
    pids = server.worker_pids()
    streams = []
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        for number in range(6):
            request = body(f"story {number}", MODEL, stream=True, **LONG)
            streams.append(threads.submit(server.post, PATH, request))
        eventually(lambda: listed(server)["w0"]["calls"], "it gets no call")
        drained = drain(server, "w0")
        assert (drained["source"], drained["state"]) == ("embedded", "draining")
        assert drained["url"] == listed(server)["w0"]["url"]
        assert (drained["drained_by"], drained["note"]) == (BY, None)
        assert {ask(server) for _ in range(6)} == {"w1"}
        answers = [each.result() for each in streams]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-500:]
        assert '"error"' not in answer.text
    assert "w0" in {answer.headers["x-fairserve-worker"] for answer in answers}
    becomes(server, RESTING)
    assert listed(server)["w0"]["drained_at"] == drained["drained_at"]
    assert listed(server)["w0"]["model"] == MODEL
    assert ask_side_by_side(server) == {"w1"}
    assert server.worker_pids() == pids, "its process lives"
    assert server.http.get("/health/readiness").json()["workers"] == 1
    assert drain(server, "w0", "undrain")["drained_by"] is None
    becomes(server, SERVING)
    eventually(lambda: "w0" in ask_side_by_side(server), "it gets no call")
    assert server.worker_pids() == pids


def test_a_drain_taken_back_while_calls_run_breaks_none(embedded):
    server = embedded
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        running = [
            threads.submit(server.post, PATH, body(f"story {n}", MODEL, **LONG)) for n in range(6)
        ]
        eventually(lambda: listed(server)["w0"]["calls"], "it gets no call")
        for what in ("drain", "undrain", "drain", "undrain"):
            drain(server, "w0", what)
        assert all(each.done() for each in running) or listed(server)["w0"]["calls"], "they count"
        becomes(server, SERVING)
        assert {each.result().status_code for each in running} == {200}
    eventually(lambda: "w0" in ask_side_by_side(server), "it gets no call")


def test_a_drain_holds_for_the_next_process_and_the_next_server(embedded):
    server = embedded
    drain(server, "w0")
    becomes(server, RESTING)
    first = server.worker_pids()["w0"]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: server.worker_pids()["w0"] not in (None, first))
    eventually(lambda: listed(server)["w0"]["url"], "it does not come back")
    becomes(server, RESTING)
    for end in (server.stop, server.kill):
        end()
        server.start()
        becomes(server, RESTING)
        assert ask_side_by_side(server, 4) == {"w1"}
        assert "drained, so that they take no calls: w0" in server.log_path.read_text()
    drain(server, "w0", "undrain")
    becomes(server, SERVING)
    eventually(lambda: "w0" in ask_side_by_side(server), "it gets no call")
    actions = [
        (item["action"], item["target"], item["actor"])
        for item in server.admin("GET", "/admin/audit", params={"target": "w0"}).json()["items"]
    ]
    assert actions[:2] == [
        ("worker.undrain", "w0", BY),
        ("worker.drain", "w0", BY),
    ]
    server.stop()
    server.start()
    becomes(server, SERVING)


def test_drains_that_leave_nobody_say_so(embedded):
    server = embedded
    assert drain(server, "w0")["note"] is None
    alone = drain(server, "w1")["note"]
    assert alone.startswith(f"no other worker serves {MODEL!r}"), alone
    becomes(server, {"w0": ("embedded", "drained"), "w1": ("embedded", "drained")})
    assert {worker["note"] for worker in listed(server).values()} == {alone}
    assert server.http.get("/health/readiness").status_code == 503
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waits = threads.submit(ask, server)
        eventually(lambda: server.cluster()["queued_calls"] == 1, "it does not wait")
        drain(server, "w1", "undrain")
        assert waits.result() == "w1", "it has waited for its worker"
    drain(server, "w0", "undrain")
    becomes(server, SERVING)


@pytest.fixture(scope="module")
def scripted_three():
    found = [ScriptedWorker() for _ in range(3)]
    yield found
    for worker in found:
        worker.close()


def test_workers_of_settings_and_file_stay_drained_when_the_file_changes(
    start_server, scripted_three, tmp_path
):
    one, two, three = scripted_three
    file = FleetFile(tmp_path / "fleet.json")
    file.workers(("f0", two), ("f1", three))
    server = start_server("--worker-urls", one.url, "--fleet-file", str(file.path))
    whole = {"w0": ("settings", "serving"), "f0": ("file", "serving"), "f1": ("file", "serving")}
    becomes(server, whole)
    with traffic(server) as answers:
        more(answers)
        for worker_id in ("w0", "f0"):
            drain(server, worker_id)
        resting = whole | {"w0": ("settings", "drained"), "f0": ("file", "drained")}
        becomes(server, resting)
        more(answers, 4)
        assert more(answers) == {"f1"}
        file.workers(("f0", two), ("f1", three), aliases={"chat": {"scripted": 1}})
        eventually(lambda: server.admin("GET", "/admin/cluster/aliases").json()["items"])
        assert states(server) == resting
        file.workers(("f1", three))
        becomes(server, {"w0": ("settings", "drained"), "f1": ("file", "serving")})
        file.workers(("f0", two), ("f1", three))
        becomes(server, resting)
        more(answers, 4)
        assert more(answers) == {"f1"}
        for worker_id in ("w0", "f0"):
            drain(server, worker_id, "undrain")
        becomes(server, whole)
        eventually(lambda: {"w0", "f0"} <= more(answers), "they get no calls")
    assert [answer.text for answer in answers if answer.status_code != 200] == []


def test_the_last_worker_drained_keeps_its_model(start_server, scripted_three):
    """Whose calls wait for it, where otherwise nobody would know the model."""
    server = start_server("--worker-urls", scripted_three[0].url, "--max-queue-wait-s", "0.5")
    becomes(server, {"w0": ("settings", "serving")})
    assert drain(server, "w0")["note"].startswith("no other worker serves 'scripted'")
    becomes(server, {"w0": ("settings", "drained")})
    assert listed(server)["w0"]["model"] == "scripted"
    refused = call(server)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_timeout")
    drain(server, "w0", "undrain")
    becomes(server, {"w0": ("settings", "serving")})
    assert call(server).headers["x-fairserve-worker"] == "w0"


def test_only_admins_drain(embedded):
    for key, status in ((embedded.tenant_key, 403), (embedded.app_key, 403), ("none", 401)):
        for what in ("drain", "undrain"):
            answer = embedded.request("POST", f"{WORKERS}/w0/{what}", key)
            assert answer.status_code == status
    assert states(embedded) == SERVING
