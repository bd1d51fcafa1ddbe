"""Processes that die, stop or start twice: nothing is lost, nothing is left, and it is said."""

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess

import httpx
import pytest
from processes import eventually

from .conftest import DEADLINE_S, MODEL

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def fragile(start_server):
    """A server whose processes may be killed; every test leaves it running."""
    return start_server("--workers", "2", "--drain-timeout-s", "20")


def body(text="hello", tokens=20, **more):
    message = {"role": "user", "content": text}
    return {"model": MODEL, "messages": [message], "max_tokens": tokens, **more}


@contextlib.contextmanager
def streaming(server, run, tokens=8000):
    """A stream that has begun, and its worker."""
    headers = {"Authorization": f"Bearer {server.app_key}", "X-Interaction-Id": run}
    with server.http.stream(
        "POST", PATH, json=body(tokens=tokens, stream=True), headers=headers
    ) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        yield lines, answer.headers["x-fairserve-worker"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def test_a_second_server_on_the_same_data_is_refused(fragile):
    second = subprocess.run(
        fragile.command("--port", "0"),
        env=fragile.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 1
    assert f"in use by another FairServe server (process {fragile.process.pid})" in second.stderr


def test_a_second_server_on_the_same_database_is_refused(fragile, tmp_path):
    database = f"sqlite:///{fragile.data_dir / 'fairserve.sqlite3'}"
    flags = ["--data-dir", str(tmp_path), "--database-url", database, "--port", "0"]
    second = subprocess.run(
        [*fragile.command()[:-2], *flags],
        env=fragile.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 1
    assert "is in use by another FairServe server" in second.stderr


def test_a_port_in_use_is_told(fragile, tmp_path):
    second = subprocess.run(
        [*fragile.command()[:-2], "--data-dir", str(tmp_path), "--port", str(fragile.port)],
        env=fragile.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 1
    assert f"port {fragile.port} is in use" in second.stderr


def test_a_worker_that_is_killed_ends_its_streams_and_is_replaced(fragile):
    with streaming(fragile, "run-worker-killed") as (lines, worker):
        old = fragile.worker_pids()[worker]
        os.kill(old, signal.SIGKILL)
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "worker_failed"
    row = fragile.row(interaction_id="run-worker-killed")
    assert (row["outcome"], row["worker"], row["wasted"]) == ("failed", worker, 1)
    assert row["output_tokens"] > 0
    # Meanwhile the other one serves.
    assert fragile.post(PATH, body()).status_code == 200

    def replaced():
        cluster = fragile.cluster()
        ready = {w["worker_id"] for w in cluster["workers"] if w["ready"]}
        return worker in ready and fragile.worker_pids()[worker] not in (None, old)

    eventually(replaced)


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
        eventually(lambda: any(w["calls"] for w in fragile.cluster()["workers"]
                               if w["worker_id"] == "w0"))  # fmt: skip
        os.kill(pids["w0"], signal.SIGKILL)
        answers = [each.result() for each in calls]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-fairserve-worker"] for answer in answers} == {"w1"}
    for number in range(6):
        assert fragile.row(interaction_id=f"run-hop-{number}")["outcome"] == "completed"
    eventually(lambda: fragile.worker_pids()["w0"] not in (None, pids["w0"]))


def test_a_server_that_is_killed_under_load_has_one_row_for_every_accepted_call(fragile):
    fragile.post(PATH, body())
    before = {row["call_id"] for row in eventually(fragile.rows)}
    children = list(fragile.worker_pids().values())
    stop = False
    answered = []

    old = {entry["key"] for entry in entries(fragile.data_dir) if entry["kind"] == "progress"}

    def load(client):
        """Calls one after the other; remembers those whose answer came."""
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


def entries(data_dir):
    for path in (data_dir / "journal").glob("journal-*.jsonl"):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # the last line may be torn
                yield json.loads(line[9:])


def journal_entries(data_dir):
    """Ids that the journal has accepted, and closed."""
    kinds = [(entry["kind"], entry["key"]) for entry in entries(data_dir)]
    accepted = {key for kind, key in kinds if kind == "accepted"}
    return accepted, {key for kind, key in kinds if kind == "closed"}


def has_progress(data_dir, old):
    """Whether tokens of a new call have reached the journal."""
    new = (e for e in entries(data_dir) if e["kind"] == "progress" and e["key"] not in old)
    told = [entry["data"] for entry in new]
    return any(data["output_tokens"] > 50 for data in told)


def test_ctrl_c_drains_ends_the_children_and_loses_no_row(fragile):
    children = list(fragile.worker_pids().values())
    with streaming(fragile, "run-draining", tokens=400) as (lines, _):
        fragile.process.send_signal(signal.SIGINT)
        *_, last = lines
    assert last == "data: [DONE]", "a call under way ends in peace"
    assert fragile.process.wait(DEADLINE_S) == 0
    assert not any(map(alive, children))
    (row,) = fragile.rows(interaction_id="run-draining")
    assert (row["outcome"], row["output_tokens"]) == ("completed", 400)
    log = fragile.log_path.read_text()
    assert "Traceback" not in log, log
    fragile.start()
