"""Servers of a newer version replace all others one by one under traffic, and no client notices.

The newer version is this code with another number: a tree of links with one file of its own.
"""

import concurrent.futures
import contextlib
import itertools
import os
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from processes import eventually
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from shared_servers import SharedServers

import fairserve
from fairserve.platform.control.log.shared_cell import CELL_VERSION

CHAT = "/v1/chat/completions"
NANO = 10**9
BUDGET = 0.3
MOST = 0.07
"""More than the most that a call may cost."""
PRICE = {"model": "*", "input": 1000, "output": 2000}
EXPECTED = {("plain", 200), ("held", 200), ("quota", 200), ("quota", 429)}
CHANGED = Path("platform/control/log/shared_cell.py")


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """Return the environment of processes of the next version."""
    ours, root = Path(fairserve.__file__).parent, tmp_path_factory.mktemp("newer")
    folder = root / "fairserve"
    folder.mkdir()
    for depth in range(len(CHANGED.parts)):
        inside = Path(*CHANGED.parts[:depth])
        for path in (ours / inside).resolve().iterdir() if depth else ours.iterdir():
            if path.name == CHANGED.parts[depth]:
                continue
            (folder / inside / path.name).symlink_to(path.resolve())
        if depth < len(CHANGED.parts) - 1:
            (folder / inside / CHANGED.parts[depth]).mkdir()
    number = f"CELL_VERSION = {CELL_VERSION}\n"
    text = (ours / CHANGED).read_text()
    assert text.count(number) == 1
    (folder / CHANGED).write_text(text.replace(number, f"CELL_VERSION = {CELL_VERSION + 1}\n"))
    return {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def workers():
    """Yield a worker for all calls, and one with memory for one call."""
    made = ScriptedWorker(), ScriptedWorker(kv_blocks=8, model="narrow")
    yield made
    for worker in made:
        worker.close()


@pytest.fixture
def servers(tmp_path, new_postgres_url, workers):
    redis = RedisProcess(tmp_path / "redis", keeps=True)
    urls = ",".join(worker.url for worker in workers)
    servers = SharedServers(tmp_path, new_postgres_url(), redis.url, urls)
    try:
        servers.start(control="control", standby="control", first="api", second="api")
        yield servers
    finally:
        servers.close()
        redis.close()


class Traffic:
    """Clients of a balancer, which chooses among ``targets``."""

    def __init__(self, *targets):
        self.targets = targets
        self.answers = []
        """App, status and text of each call that ended."""
        self._lock = threading.Lock()
        self._sent, self._turn = Counter(), itertools.count()
        self._stopping = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(16)
        self._clients = []

    def repeat(self, work):
        """Call a function with 0, 1, 2, ... in a thread of its own until the end."""

        def client():
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                work(number)
                self._stopping.wait(0.1)

        self._clients.append(self._pool.submit(client))

    def send(self, app, text="ok", **more):
        """Send a call to one of the targets; return its answer."""
        with self._lock:
            server = self.targets[next(self._turn) % len(self.targets)]
            self._sent[server] += 1
        try:
            return self.send_to(server, app, text, **more)
        finally:
            with self._lock:
                self._sent[server] -= 1

    def send_to(self, server, app, text, *, run=None, **more):
        body = {"model": "scripted", "messages": [], "max_tokens": 20, **more}
        body["messages"] = [*body["messages"], {"role": "user", "content": text}]
        headers = {} if run is None else {"X-Interaction-Id": run}
        answer = server.post(CHAT, body, key=app["api_key"], headers=headers)
        self.answers.append((app["name"], answer.status_code, answer.text))
        return answer

    def later(self, server, app, text, **more):
        """Send a call to a server in a thread of its own."""
        return self._pool.submit(self.send_to, server, app, text, **more)

    def more(self):
        """Wait for the answers of further calls."""
        enough = len(self.answers) + 20
        eventually(lambda: len(self.answers) > enough or any(map(_ended, self._clients)))

    @contextlib.contextmanager
    def without(self, server, *targets):
        """Send to these targets, and stop a server; in the block it drains. It exits with 0."""
        self.targets = targets
        # Of what a balancer has sent before, nothing is on its way to a closed port.
        eventually(lambda: not self._sent[server])
        stopping = self._pool.submit(server.stop)
        yield
        assert stopping.result(90) == 0, server.log()

    def stop(self):
        self._stopping.set()
        for client in self._clients:
            client.result(60)
        self._pool.shutdown()


def _ended(client):
    return client.done()


def ledger(servers, app):
    with psycopg.connect(servers.database_url) as connection:
        query = "SELECT call_id, outcome, cost FROM ledger_calls WHERE app_id = %s"
        return connection.execute(query, (app["id"],)).fetchall()


def test_a_newer_version_replaces_all_servers_without_an_error(servers, workers, newer):
    narrow = workers[1]
    first, second = servers["first"], servers["second"]
    assert first.admin("POST", "/admin/prices", json=PRICE).status_code == 201
    budget = {"max_budget": BUDGET, "budget_duration": "12mo"}
    plain, held = first.new_app(name="plain"), first.new_app(name="held")
    quota = first.new_app(name="quota", contract=budget)
    traffic, stages = Traffic(first, second), []

    def run(number):
        users = {"user": "ann"}, {}, {}
        answers = [traffic.send(plain, run=f"run-{number}", **user) for user in users]
        stages.append([each.headers.get("x-fairserve-stage") for each in answers])

    def hold(name, server):
        """Send a call that waits for the one place at the narrow worker."""
        system = [{"role": "system", "content": "more than half of the memory " * 12}]
        more = {"model": "narrow", "messages": system, "max_tokens": 20, "stream": True}
        return traffic.later(server, held, f"hold {name}", **more)

    traffic.repeat(lambda number: traffic.send(plain))
    traffic.repeat(lambda number: traffic.send(plain, stream=True))
    traffic.repeat(lambda number: traffic.send(quota))
    traffic.repeat(run)
    try:
        calls = [hold("a", first)]
        eventually(lambda: narrow.holding == ["a"])
        for queued, (name, server) in enumerate([("b", first), ("c", second)], 1):
            calls.append(hold(name, server))
            eventually(lambda queued=queued: second.cluster()["queued_calls"] == queued)
        traffic.more()

        # An API server of the newer version waits for control of its version.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            third = pool.submit(servers.start, newer, third="api")
            servers.start(newer, newcontrol="control")
            assert servers["standby"].stop() == 0
            servers.start(newer, newstandby="control")
            assert servers["control"].stop() == 0
            third.result()
        traffic.more()
        calls.append(hold("d", second))
        narrow.release()
        eventually(lambda: narrow.holding == ["a", "b"])

        with traffic.without(first, second, servers["third"]):
            narrow.release()
            eventually(lambda: narrow.holding == ["a", "b", "c"])
        servers.start(newer, fourth="api")
        with traffic.without(second, servers["third"], servers["fourth"]):
            narrow.release()
            eventually(lambda: narrow.holding == ["a", "b", "c", "d"])
            narrow.release()
        traffic.more()
    finally:
        traffic.stop()

    assert [call.result().text.count("[DONE]") for call in calls] == [1] * 4
    assert [each for each in traffic.answers if each[:2] not in EXPECTED] == []
    assert set(map(tuple, stages)) == {("1", "2", "3")}
    statuses = Counter((name, status) for name, status, _ in traffic.answers)
    for app in (plain, held, quota):
        expected = Counter(completed=statuses[app["name"], 200], refused=statuses[app["name"], 429])
        most = expected.total()
        eventually(lambda app=app, most=most: len(ledger(servers, app)) >= most)
        found = ledger(servers, app)
        assert Counter(outcome for _, outcome, _ in found) == +expected
        assert len({call_id for call_id, *_ in found}) == len(found)
    spent = sum(cost or 0 for *_, cost in ledger(servers, quota)) / NANO
    assert BUDGET - MOST < spent <= BUDGET
    assert statuses["quota", 429] > 0
    for name in ("newcontrol", "newstandby", "third", "fourth"):
        assert servers[name].stop() == 0, servers[name].log()
