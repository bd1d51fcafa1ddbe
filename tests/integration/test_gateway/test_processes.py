"""A server with embedded workers survives deaths, stops and double starts without losses.

The server has two workers with torch engines, which take seconds to start. Every test leaves both
serving, or the server stopped: the next one starts it.
"""

import concurrent.futures
import contextlib
import json
import os
import signal
import sys

import httpx
import pytest
from gateway_server import ADMIN_KEY
from journal_files import entries, journal_entries
from processes import alive, eventually
from server_client import DEADLINE_S
from torch_worker import MODEL

from fairserve.platform.server import cli

from .test_fleet import PATH, WORKERS, becomes, drain, listed

KV_TOKENS = 4096
"""KV capacity of each worker: small, so that a few prompts fill it."""
SERVING = {"w0": ("embedded", "serving"), "w1": ("embedded", "serving")}
BY = ADMIN_KEY[:4]
"""Part of a foreign key that answers may contain."""


@pytest.fixture(scope="module")
def own(start_process):
    flags = ("--worker-kv-tokens", str(KV_TOKENS), "--drain-timeout-s", "20")
    return start_process("--workers", "2", "--model", MODEL, *flags)


@pytest.fixture
def fragile(own):
    """Return the server with both of its workers, whose processes a test may kill."""
    if not own.runs():
        own.start()
    becomes(own, SERVING)
    return own


def body(text="hello", tokens=20, **more):
    message = {"role": "user", "content": text}
    return {"model": MODEL, "messages": [message], "max_tokens": tokens, **more}


def ask(server, text="hello", **more):
    """Return the worker of a successful call."""
    answer = server.post(PATH, body(text, **more))
    assert answer.status_code == 200, answer.text
    return answer.headers["x-fairserve-worker"]


def ask_side_by_side(server, calls=8):
    """Return the workers of simultaneous calls, so that idle workers get some."""
    with concurrent.futures.ThreadPoolExecutor(calls) as threads:
        running = [threads.submit(ask, server, text=f"call {n}") for n in range(calls)]
        return {each.result() for each in running}


@contextlib.contextmanager
def streaming(server, run, tokens=3900):
    """Return a stream that has begun to send its answer, and its worker."""
    headers = {"Authorization": f"Bearer {server.app_key}", "X-Interaction-Id": run}
    asked = body(tokens=tokens, stream=True, ignore_eos=True)
    with server.http.stream("POST", PATH, json=asked, headers=headers) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        chunks = (json.loads(line.removeprefix("data: ")) for line in lines)
        assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
        yield lines, answer.headers["x-fairserve-worker"]


@contextlib.contextmanager
def stories(server, count=6):
    """Start simultaneous long calls that are read in threads, some of them on w0."""
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        running = [
            threads.submit(server.post, PATH, body(f"story {n}", 300, stream=True, ignore_eos=True))
            for n in range(count)
        ]
        eventually(lambda: listed(server)["w0"]["calls"], "it gets no call")
        yield running
    for each in running:
        answer = each.result()
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]"), answer.text[-500:]
        assert '"error"' not in answer.text


def kv_events(server):
    return {worker["worker_id"]: worker["kv_events"] for worker in server.cluster()["workers"]}


def sockets(server):
    """Return each worker's sockets in their folder: the names begin with its pid."""
    folder = server.data_dir / "sockets"
    assert folder.stat().st_mode & 0o777 == 0o700
    return sorted(path.name for path in folder.iterdir())


def expected_sockets(server):
    pids = server.worker_pids().values()
    return sorted(f"{pid}-{what}" for pid in pids for what in ("events", "replays"))


# --- double starts --------------------------------------------------------------------------------


@pytest.fixture
def start_error(capsys, monkeypatch):
    """Return a function that runs ``serve`` again in this process and returns its error."""
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval_s: None)

    def run(*flags):
        assert cli.main(["serve", *flags]) == 1
        return capsys.readouterr().err

    return run


def test_a_second_server_is_rejected(fragile, start_error, tmp_path):
    error = start_error("--data-dir", str(fragile.data_dir), "--port", "0")
    assert f"in use by another FairServe server (process {fragile.process.pid})" in error
    database = f"sqlite:///{fragile.data_dir / 'fairserve.sqlite3'}"
    elsewhere = ("--data-dir", str(tmp_path))
    error = start_error(*elsewhere, "--database-url", database, "--port", "0")
    assert "is in use by another FairServe server" in error
    assert f"port {fragile.port} is in use" in start_error(*elsewhere, "--port", str(fragile.port))


# --- caches of workers ----------------------------------------------------------------------------


def test_embedded_workers_are_listed_and_not_removed(fragile):
    worker = listed(fragile)["w0"]
    assert worker["url"].startswith("http://127.0.0.1:")
    assert worker["model"] == MODEL
    answer = fragile.admin("DELETE", f"{WORKERS}/w0")
    assert (answer.status_code, "the setting workers" in answer.text) == (409, True)
    again = {"id": "w0", "url": "http://127.0.0.1:1"}
    assert fragile.admin("POST", WORKERS, json=again).status_code == 409


def test_the_cluster_page_shows_reports_of_workers(fragile):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        texts = (f"Question {number} " * 100 for number in range(12))
        assert set(threads.map(lambda text: ask(fragile, text), texts)) == {"w0", "w1"}

    def settled():
        reported = kv_events(fragile)
        return all(each and each["events"] for each in reported.values()) and reported

    for seen in eventually(settled).values():
        assert seen["connected"]
        assert seen["complete"]
        assert (seen["gaps"], seen["resets"], seen["restarts"], seen["unreadable"]) == (0, 0, 0, 0)
        assert 0 < seen["blocks"] <= KV_TOKENS // 16
        assert seen["last_sequence"] is not None


def test_a_prompt_is_routed_to_the_worker_that_caches_it(fragile):
    asked = body("A document that is asked about again. " * 10)
    first, again = (fragile.post(PATH, asked) for _ in range(2))
    assert again.headers["x-fairserve-worker"] == first.headers["x-fairserve-worker"]
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


# --- draining workers -----------------------------------------------------------------------------


def test_calls_of_a_drained_worker_complete_and_an_undrain_restores_it(fragile):
    pids = fragile.worker_pids()
    with stories(fragile) as running:
        drained = drain(fragile, "w0")
        assert (drained["source"], drained["state"]) == ("embedded", "draining")
        assert drained["url"] == listed(fragile)["w0"]["url"]
        assert (drained["drained_by"], drained["note"]) == (BY, None)
        assert {ask(fragile) for _ in range(6)} == {"w1"}
    assert "w0" in {each.result().headers["x-fairserve-worker"] for each in running}
    becomes(fragile, SERVING | {"w0": ("embedded", "drained")})
    assert listed(fragile)["w0"]["drained_at"] == drained["drained_at"]
    assert listed(fragile)["w0"]["model"] == MODEL
    assert ask_side_by_side(fragile) == {"w1"}
    assert fragile.worker_pids() == pids, "its process lives"
    assert fragile.http.get("/health/readiness").json()["workers"] == 1
    assert drain(fragile, "w0", "undrain")["drained_by"] is None
    becomes(fragile, SERVING)
    eventually(lambda: "w0" in ask_side_by_side(fragile), "it gets no call")
    assert fragile.worker_pids() == pids


def test_an_undrain_breaks_no_running_call(fragile):
    with stories(fragile) as running:
        for what in ("drain", "undrain", "drain", "undrain"):
            drain(fragile, "w0", what)
        calls = listed(fragile)["w0"]["calls"]
        assert calls or all(each.done() for each in running), "they count"
        becomes(fragile, SERVING)
    eventually(lambda: "w0" in ask_side_by_side(fragile), "it gets no call")


def test_draining_the_last_worker_is_noted(fragile):
    assert drain(fragile, "w0")["note"] is None
    alone = drain(fragile, "w1")["note"]
    assert alone.startswith(f"no other worker serves {MODEL!r}"), alone
    becomes(fragile, {"w0": ("embedded", "drained"), "w1": ("embedded", "drained")})
    assert {worker["note"] for worker in listed(fragile).values()} == {alone}
    assert fragile.http.get("/health/readiness").status_code == 503
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waits = threads.submit(ask, fragile)
        eventually(lambda: fragile.cluster()["queued_calls"] == 1, "it does not wait")
        drain(fragile, "w1", "undrain")
        assert waits.result() == "w1", "it has waited for its worker"
    drain(fragile, "w0", "undrain")
    becomes(fragile, SERVING)


# --- dying workers --------------------------------------------------------------------------------


def test_a_drained_worker_that_is_killed_ends_its_streams_and_restarts_drained(fragile):
    with streaming(fragile, "run-worker-killed") as (lines, worker):
        drain(fragile, worker)
        old = fragile.worker_pids()[worker]
        os.kill(old, signal.SIGKILL)
        *_, last = lines
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "worker_failed"
    row = fragile.row(interaction_id="run-worker-killed")
    assert (row["outcome"], row["worker"], row["wasted"]) == ("failed", worker, 1)
    assert row["output_tokens"] > 0
    assert ask(fragile) != worker, "the other one serves while this one is drained"
    eventually(lambda: fragile.worker_pids()[worker] not in (None, old))
    eventually(lambda: listed(fragile)[worker]["url"], "it does not come back")
    becomes(fragile, SERVING | {worker: ("embedded", "drained")})
    drain(fragile, worker, "undrain")
    becomes(fragile, SERVING)

    def followed_anew():
        now = kv_events(fragile).get(worker)
        return now and now["connected"] and now["complete"] and now["blocks"] == 0 and now

    assert eventually(followed_anew)["last_sequence"] is None, "another life, from its beginning"
    eventually(lambda: worker in ask_side_by_side(fragile), "it gets no call")
    for number in range(6):
        ask(fragile, f"Afterwards {number} " * 20)
    eventually(lambda: kv_events(fragile)[worker]["blocks"] > 0)


def test_a_call_whose_worker_dies_before_its_first_token_is_served_by_another(fragile):
    """Calls queue behind long prompts on a worker that is stopped, then killed."""
    pids = fragile.worker_pids()
    os.kill(pids["w0"], signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        calls = [
            threads.submit(
                fragile.post, PATH, body(f"{n} " * 50), headers={"X-Interaction-Id": f"run-hop-{n}"}
            )
            for n in range(6)
        ]
        eventually(lambda: listed(fragile)["w0"]["calls"], "it gets no call")
        os.kill(pids["w0"], signal.SIGKILL)
        answers = [each.result() for each in calls]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-fairserve-worker"] for answer in answers} == {"w1"}
    for number in range(6):
        assert fragile.row(interaction_id=f"run-hop-{number}")["outcome"] == "completed"
    eventually(lambda: fragile.worker_pids()["w0"] not in (None, pids["w0"]))
    becomes(fragile, SERVING)


# --- a server that dies or stops ------------------------------------------------------------------


def test_a_server_that_is_killed_under_load_has_one_row_for_every_accepted_call(fragile):
    """Its workers end with it; drained workers stay drained, and their sockets are new."""
    ask(fragile)
    before = {row["call_id"] for row in eventually(fragile.rows)}
    children = list(fragile.worker_pids().values())
    assert set(sockets(fragile)) >= set(expected_sockets(fragile))
    stop = False
    answered = []

    old = {entry["key"] for entry in entries(fragile.data_dir) if entry["kind"] == "progress"}

    def load(client):
        """Make calls one after the other; collect those that were answered."""
        number = 0
        while not stop:
            number += 1
            run = f"run-load-{client}-{number}"
            with contextlib.suppress(httpx.TransportError):
                answer = fragile.post(PATH, body(tokens=5), headers={"X-Interaction-Id": run})
                if answer.status_code == 200:
                    answered.append(run)

    with concurrent.futures.ThreadPoolExecutor(9) as threads:
        for client in range(8):
            threads.submit(load, client)
        with streaming(fragile, "run-long") as (lines, _):
            eventually(lambda: len(answered) > 20 and has_progress(fragile.data_dir, old))
            drain(fragile, "w0")
            stop = True
            fragile.kill()
            with pytest.raises(httpx.TransportError):
                list(lines)
    eventually(lambda: not any(map(alive, children)), "workers outlive the server")
    accepted, closed = journal_entries(fragile.data_dir)
    assert accepted - closed, "calls were open when it was killed"

    fragile.start()
    eventually(lambda: accepted <= {row["call_id"] for row in fragile.rows()})
    rows = [row for row in fragile.rows() if row["call_id"] not in before]
    assert len({row["call_id"] for row in rows}) == len(rows)
    completed = {row["interaction_id"] for row in rows if row["outcome"] == "completed"}
    assert set(answered) <= completed, "every answer that a client got is in the ledger"
    left = [row for row in rows if row["error"] == "server stopped"]
    assert left
    assert {row["outcome"] for row in left} == {"failed"}
    (long,) = (row for row in rows if row["interaction_id"] == "run-long")
    assert long["output_tokens"] > 0, "its progress was in the journal"

    becomes(fragile, SERVING | {"w0": ("embedded", "drained")})
    # A drained worker is listed before its process has opened its sockets.
    eventually(
        lambda: sockets(fragile) == expected_sockets(fragile),
        lambda: f"those of the killed one have not gone: {sockets(fragile)}",
    )
    assert ask_side_by_side(fragile, 4) == {"w1"}
    assert "drained workers, which get no calls: w0" in fragile.log()
    drain(fragile, "w0", "undrain")
    becomes(fragile, SERVING)
    query = {"target": "w0"}
    logged = fragile.admin("GET", "/admin/audit", params=query).json()["items"]
    actions = [(item["action"], item["target"], item["actor"]) for item in logged]
    assert actions[:2] == [("worker.undrain", "w0", BY), ("worker.drain", "w0", BY)]


def has_progress(data_dir, old):
    """Return whether tokens of a new call have reached the journal."""
    new = (e for e in entries(data_dir) if e["kind"] == "progress" and e["key"] not in old)
    reported = [entry["data"] for entry in new]
    return any(data["output_tokens"] > 50 for data in reported)


def test_ctrl_c_drains_ends_the_children_and_loses_no_row(fragile):
    children = list(fragile.worker_pids().values())
    with streaming(fragile, "run-draining", tokens=150) as (lines, _):
        fragile.process.send_signal(signal.SIGINT)
        *_, last = lines
    assert last == "data: [DONE]", "a running call ends cleanly"
    assert fragile.process.wait(DEADLINE_S) == 0
    assert not any(map(alive, children))
    assert not (fragile.data_dir / "sockets").exists()
    (row,) = fragile.rows(interaction_id="run-draining")
    assert (row["outcome"], row["output_tokens"]) == ("completed", 150)
    log = fragile.log()
    assert "Traceback" not in log, log
