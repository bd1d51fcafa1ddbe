"""Kills of Envoy, of the server and of a worker under load: each call has one row, and none is left.

The server is the shipped command in a process of its own, with workers in processes of theirs.
"""

import collections
import os
import re
import signal

import pytest
from call_load import CallLoad
from gateway_server import ChildServer
from installed_envoy import need_envoy
from journal_files import journal_entries
from paced_worker import PacedWorker
from processes import alive, children, eventually, read_of

KILLED_AFTER = 40
"""Complete calls before the kill, and after it."""
KV_BLOCKS = 16
"""Capacity of a worker: it holds a few calls, so that others wait."""
IN_PROGRESS = (
    "calls_queued",
    "calls_running",
    "load_demand_tokens",
    "worker_calls",
    "worker_demand_tokens",
    "ledger_lag_bytes",
)
"""Metrics that are zero while nothing is in progress."""


def envoys(server):
    """Return the ids of the server's Envoys, which are children of its children."""
    found = [each for guard in children(server.process.pid) for each in children(guard)]
    return [each for each in found if "/envoy\0" in read_of(f"/proc/{each}/cmdline")]


@pytest.fixture(scope="module")
def workers():
    found = [PacedWorker(kv_blocks=KV_BLOCKS) for _ in range(3)]
    yield found
    for worker in found:
        worker.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory, workers):
    need_envoy()
    urls = ",".join(worker.url for worker in workers)
    flags = ("--worker-urls", urls, "--data-plane", "envoy", "--envoy-progress-s", "0.1")
    server = ChildServer(tmp_path_factory.mktemp("server") / "data", *flags)
    yield server
    server.close()


@pytest.fixture(scope="module")
def keys(server):
    """Return the keys of the apps of three tenants."""
    found = [server.app_key]
    for name in ("second", "third"):
        tenant = server.admin("POST", "/admin/tenants", json={"name": name}).json()
        found.append(server.new_app(f"{name}-app", tenant_key=tenant["api_key"]))
    return found


@pytest.fixture
def load(server, keys):
    """Return clients whose calls have begun to end."""
    with CallLoad(server.url, keys) as load:
        eventually(lambda: len(load.complete()) >= KILLED_AFTER, "calls do not end")
        eventually(lambda: server.cluster()["queued_calls"], "no call waits")
        yield load


def serves_again(load):
    """Wait until calls that began after now are complete."""
    since = len(load.seen)
    eventually(lambda: len(load.complete(since=since)) >= KILLED_AFTER, "it does not serve again")
    load.stop()


def rows_of(server, load):
    """Return the rows of the load's calls by run, once no call is in progress."""
    eventually(lambda: not in_progress(server), lambda: f"left: {in_progress(server)}")
    runs = {call.run for call in load.seen}
    begun = {call.record for call in load.seen if call.status == 200}
    eventually(
        lambda: begun <= {row["call_id"] for row in server.rows()},
        lambda: f"no row: {begun - {row['call_id'] for row in server.rows()}}",
    )
    found = collections.defaultdict(list)
    for row in server.rows():
        if row["interaction_id"] in runs:
            found[row["interaction_id"]].append(row)
    return found


def in_progress(server):
    """Return the metrics of calls, tokens and journal entries in progress that are not zero."""
    text = server.admin("GET", "/metrics").text
    lines = re.findall(r"^fairserve_((\w+)(?:{.*})?) (\S+)$", text, re.MULTILINE)
    found = [(line, float(value)) for line, name, value in lines if name in IN_PROGRESS]
    assert {line.partition("{")[0] for line, _ in found} == set(IN_PROGRESS), text
    return {line: value for line, value in found if value}


def check_rows(load, rows):
    """Check that each call has one row, and that a row is complete where the client saw it."""
    for call in load.seen:
        found = rows.get(call.run, [])
        assert len(found) <= 1, call
        if call.status == 200:
            assert [row["call_id"] for row in found] == [call.record], call
    return collections.Counter(row["outcome"] for found in rows.values() for row in found)


def test_a_killed_envoy(server, load):
    (pid,) = envoys(server)
    os.kill(pid, signal.SIGKILL)
    serves_again(load)
    outcomes = check_rows(load, rows_of(server, load))
    assert outcomes["failed"] + outcomes["cancelled"] > 0
    assert len(envoys(server)) == 1


def test_a_killed_server(server, load):
    (pid,) = envoys(server)
    server.kill()
    eventually(lambda: not alive(pid), "Envoy outlives the server")
    accepted, closed = journal_entries(server.data_dir)
    assert accepted - closed, "no call was open when it was killed"
    server.start()
    serves_again(load)
    rows = rows_of(server, load)
    outcomes = check_rows(load, rows)
    assert outcomes["failed"] > 0
    assert accepted <= {row["call_id"] for row in server.rows()}
    for call in load.complete():
        assert rows[call.run][0]["outcome"] == "completed", call


def test_a_killed_worker(server, load, workers):
    workers[0].process.kill()
    serves_again(load)
    rows = rows_of(server, load)
    check_rows(load, rows)
    for call in load.complete():
        assert rows[call.run][0]["outcome"] == "completed"
