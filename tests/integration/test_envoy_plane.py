"""The real server with the real Envoy: what its clients and its ledger see equals the embedded plane."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gateway_server import ThreadServer
from installed_envoy import need_envoy
from processes import eventually
from scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"
CHANGES = frozenset({"date", "content-length", "transfer-encoding", "x-fairserve-queue-ms"})
"""Headers whose values differ from call to call, or that belong to the connection."""
TIMES = frozenset({"accepted_at", "ended_at", "queue_delay_s", "ttft_s", "duration_s"})


@pytest.fixture(scope="module")
def workers():
    found = [ScriptedWorker(), ScriptedWorker()]
    yield found
    for worker in found:
        worker.close()


@pytest.fixture(scope="module")
def planes(tmp_path_factory, workers):
    """Return a server of each plane in front of the same workers."""
    need_envoy()
    found = {}
    try:
        for plane in ("embedded", "envoy"):
            folder = tmp_path_factory.mktemp(plane) / "data"
            urls = ",".join(worker.url for worker in workers)
            found[plane] = ThreadServer(
                folder,
                *("--worker-urls", urls, "--data-plane", plane, "--max-body-bytes", "65536"),
            )
        yield found
    finally:
        for server in found.values():
            server.close()


@pytest.fixture(scope="module")
def envoy(planes):
    return planes["envoy"]


def body(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "scripted", "messages": messages, "max_tokens": 20, **more}


def ask(server, text, run, *, key=None, **more):
    known = {"X-Interaction-Id": run, "X-Call-Id": f"call-of-{run}"}
    return server.post(PATH, body(text, **more), key=key, headers=known)


def shown(answer):
    """Return status, headers and body of an answer without what differs from call to call."""
    headers = {name: value for name, value in answer.headers.items() if name not in CHANGES}
    record = headers.pop("x-request-id")
    assert record.startswith(("call_", "req_"))
    assert headers.pop("x-fairserve-worker") in ("w0", "w1")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return (
        answer.status_code,
        headers,
        [each if each == "[DONE]" else json.loads(each) for each in events],
    )


def recorded(server, run):
    """Return the ledger row of a run's call without ids and times."""
    row = server.row(interaction_id=run)
    generated = {"call_id", "tenant_id", "app_id", "user_id", "worker"}
    return {name: v for name, v in row.items() if name not in generated | TIMES}, row


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {},
    ],
    ids=["streamed", "usage", "running usage", "whole"],
)
def test_answers_headers_and_rows_are_those_of_the_embedded_plane(planes, more):
    run = f"run-equal-{len(json.dumps(more))}"
    seen, rows = [], []
    for server in planes.values():
        seen.append(shown(ask(server, "say hello", run, **more)))
        rows.append(recorded(server, run))
    embedded, envoy = seen
    assert envoy == embedded
    assert rows[1][0] == rows[0][0]
    assert rows[1][0]["outcome"] == "completed"
    for name in TIMES:
        assert (rows[1][1][name] is None) == (rows[0][1][name] is None), name


def test_rejections_are_those_of_the_embedded_plane(planes):
    """401, 404, 413, 422 and 429, with their headers."""
    answers = []
    for server in planes.values():
        limited = server.new_app("limited")
        (app,) = server.rows("apps", name="limited")
        quota = {"contract": {"rpm_limit": 1}}
        changed = server.request("PATCH", f"/v1/apps/{app['id']}", server.tenant_key, json=quota)
        assert changed.status_code == 200, changed.text
        first = ask(server, "ok", "run-limited", key=limited)
        assert first.status_code == 200, first.text
        large = {**body("x" * 200_000), "metadata": {}}
        found = [
            server.post(PATH, body("ok"), key="sk-fs-unknown"),
            server.post(PATH, body("ok", model="none")),
            server.post(PATH, large),
            server.post(
                PATH, body("ok"), headers={"X-Parent-Ids": "none", "X-Interaction-Id": "p"}
            ),
            ask(server, "ok", "run-limited-2", key=limited),
            server.post(PATH, body("ok", n=0)),
        ]
        answers.append([_rejection(each) for each in found])
    embedded, envoy = answers
    assert [status for status, *_ in envoy] == [401, 404, 413, 422, 429, 400]
    assert envoy == embedded


def _rejection(answer):
    """Return the parts of a rejection that do not depend on the time."""
    error = answer.json()["error"]
    error.pop("fairserve", None)
    message = error.pop("message").split("Retry in")[0]
    changing = CHANGES | {
        "x-request-id",
        "retry-after",
        "x-interaction-id",
        "x-call-id",
        "connection",
    }
    names = sorted(name for name in answer.headers if name not in changing)
    return answer.status_code, error, message, names


def test_a_client_that_leaves_cancels_its_call(envoy, workers):
    with (
        pytest.raises(httpx.ReadTimeout),
        envoy.http.stream(
            "POST",
            PATH,
            json=body("hold leaves", stream=True),
            headers={"Authorization": f"Bearer {envoy.app_key}", "X-Interaction-Id": "run-leaves"},
            timeout=2,
        ) as answer,
    ):
        for _ in answer.iter_lines():
            pass
    row = envoy.row(interaction_id="run-leaves")
    assert (row["outcome"], row["error"]) == ("cancelled", "client disconnected")
    assert row["input_tokens"] > 0
    eventually(lambda: sum(worker.disconnects for worker in workers))
    assert envoy.cluster()["running_calls"] == 0


def test_a_worker_that_fails_before_its_answer_is_replaced(envoy, workers):
    """The relay takes over; both workers break the connection, so the client gets the reason."""
    answer = ask(envoy, "die now", "run-dies")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    row = envoy.row(interaction_id="run-dies")
    assert (row["outcome"], row["output_tokens"]) == ("failed", 0)
    assert "x-fairserve-relay" not in answer.headers
    assert sum("die now" in str(each["messages"]) for w in workers for each in w.bodies) == 2


def test_a_worker_that_is_busy_is_replaced(envoy, workers):
    answer = ask(envoy, "busy now", "run-busy")
    assert answer.status_code == 503
    assert sum("busy now" in str(each["messages"]) for w in workers for each in w.bodies) == 3


def test_a_stream_that_breaks_off_is_recorded_as_failed(envoy):
    with contextlib.suppress(httpx.RemoteProtocolError):  # Envoy ends the connection
        ask(envoy, "break off", "run-breaks", stream=True)
    row = envoy.row(interaction_id="run-breaks")
    assert row["outcome"] == "failed"
    assert row["error"].startswith("w")


def test_an_error_in_a_stream_is_an_event_without_private_texts(planes):
    seen = [shown(ask(server, "error now", "run-errs", stream=True)) for server in planes.values()]
    embedded, envoy = seen
    assert [event.get("error") for event in envoy[2]][-1]["code"] == "worker_failed"
    assert len(envoy[2]) == len(embedded[2])
    rows = [recorded(server, "run-errs")[0] for server in planes.values()]
    assert [row["outcome"] for row in rows] == ["failed", "failed"]
    assert rows[1]["output_tokens"] == rows[0]["output_tokens"]


def test_an_operator_cancels_a_running_call(envoy, workers):
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ask, envoy, "hold cancelled", "run-cancelled")
        eventually(lambda: any("cancelled" in worker.holding for worker in workers))
        answer = envoy.request("DELETE", "/v1/interactions/run-cancelled", envoy.app_key)
        assert answer.status_code in (200, 202, 204), answer.text
        with pytest.raises((httpx.RemoteProtocolError, AssertionError)):
            assert running.result().status_code == 200
    row = envoy.row(interaction_id="run-cancelled")
    assert row["outcome"] == "cancelled"
    assert envoy.cluster()["running_calls"] == 0
    for worker in workers:
        worker.release()


def test_clients_cannot_name_an_open_call_or_a_worker(envoy, workers):
    forged = {
        "x-fairserve-call": "call_of_another",
        "x-fairserve-relay": "1",
        "x-gateway-destination-endpoint": "127.0.0.1:1",
        "x-envoy-attempt-count": "2",
    }
    answer = envoy.post(PATH, body("say forged"), headers=forged)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "forged"


def ends_at_envoy(server):
    """Return the number of calls whose end Envoy has reported."""
    server._thread.server._platform.metrics._until_s = 0.0  # a scrape of its own
    text = server.admin("GET", "/metrics").text
    name = "fairserve_envoy_end_delay_seconds_count"
    (found,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(found.split()[1])


def test_every_call_has_one_row_and_none_is_open(envoy):
    """Each end is reported once, with its delay."""
    eventually(lambda: envoy.cluster()["running_calls"] == 0)
    reported = ends_at_envoy(envoy)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: ask(envoy, "ok", f"run-many-{n}", stream=n % 2 == 0), range(60))
        )
    assert {answer.status_code for answer in answers} == {200}
    rows = eventually(
        lambda: (
            found
            if len(
                found := [r for r in envoy.rows() if r["interaction_id"].startswith("run-many-")]
            )
            >= 60
            else None
        )
    )
    assert len(rows) == 60
    assert {row["outcome"] for row in rows} == {"completed"}
    assert envoy.cluster()["running_calls"] == 0
    assert ends_at_envoy(envoy) == reported + 60


def test_a_killed_envoy_leaves_a_row_for_each_call_and_is_started_again(envoy, workers):
    """The calls in progress have failed; the port serves again, and no lease is left."""
    process = envoy._thread.server._platform.plane.process
    starts = process.starts
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ask, envoy, "hold killed", "run-killed", stream=True)
        eventually(lambda: any("killed" in worker.holding for worker in workers))
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            running.result()
    row = envoy.row(interaction_id="run-killed")
    assert (row["outcome"], row["error"]) == (
        "failed",
        f"{row['worker']}: its end was not reported",
    )
    assert row["input_tokens"] > 0
    eventually(lambda: process.starts > starts)
    eventually(envoy._ready, "Envoy does not serve again")
    assert ask(envoy, "say again", "run-again").status_code == 200
    eventually(lambda: envoy.cluster()["running_calls"] == 0)
    for worker in workers:
        worker.release()


def test_a_drain_lets_running_calls_end(tmp_path, workers):
    """New calls answer 503 until then, as does the health check."""
    flags = ("--worker-urls", workers[0].url, "--data-plane", "envoy")
    server = ThreadServer(tmp_path / "data", *flags)
    try:
        with ThreadPoolExecutor() as pool:
            running = pool.submit(ask, server, "hold drains", "run-drains", stream=True)
            eventually(lambda: "drains" in workers[0].holding)
            server._thread.server.should_exit = True
            rejected = eventually(
                lambda: (
                    answer if (answer := ask(server, "ok", "run-late")).status_code == 503 else None
                )
            )
            assert rejected.json()["error"]["code"] == "draining"
            assert server.http.get("/health/readiness").status_code == 503
            workers[0].release()
            assert running.result().text.endswith("data: [DONE]\n\n")
        assert server.stop() == 0
        assert server.row(interaction_id="run-drains")["outcome"] == "completed"
    finally:
        server.close()
