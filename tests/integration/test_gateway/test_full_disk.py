"""With a full disk new calls are rejected immediately, and every answered call has its row."""

import concurrent.futures
import errno
import os
from contextlib import ExitStack
from functools import partial

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.journal.reserve import STEP_BYTES
from fairserve.platform.server import wiring

from .test_limits import BUDGET, COST, CROWDED, Client, priced, remaining

HELD = 5


class Disk:
    """Allows as much space as needed, without a reserve; nothing once it is ``full``."""

    def __init__(self):
        self.full = False

    def allocate(self, descriptor, offset, length):
        if self.full or length >= STEP_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(descriptor, offset, length)


@pytest.fixture
def worker():
    worker = ScriptedWorker()
    yield worker
    worker.close()


def test_every_answered_call_has_its_row_and_counts_for_the_budget(
    start_server, worker, monkeypatch
):
    disk = Disk()
    monkeypatch.setattr(
        wiring, "Journal", partial(Journal, allocate=disk.allocate, segment_bytes=65536)
    )
    server = priced(start_server("--worker-urls", worker.url))
    client = Client(server, "a", contract=CROWDED)
    with ExitStack() as stack:
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(HELD))
        stack.callback(worker.release)
        held = [threads.submit(client.call, f"hold {number}") for number in range(HELD)]
        eventually(lambda: len(worker.holding) == HELD)
        disk.full = True
        answered = HELD
        while (last := client.call()).status_code == 200:
            answered += 1
        assert (last.status_code, last.json()["error"]["code"]) == (503, "journal_unavailable")
        assert "disk is full" in last.json()["error"]["message"]
        assert last.headers["retry-after"] == "5"
        opened = server.request("POST", "/v1/interactions", client.key, json={})
        assert (opened.status_code, opened.json()["error"]["code"]) == (503, "journal_unavailable")
        asked = len(worker.bodies)
        assert client.call().status_code == 503
        assert len(worker.bodies) == asked == answered, "no worker sees a call that is rejected"
        worker.release()
        assert {each.result().status_code for each in held} == {200}
    assert server.stop() == 0
    server.start()
    rows = client.rows()
    assert [row["outcome"] for row in rows] == ["completed"] * answered
    assert client.spent() == answered * COST
    left = remaining(server.request("GET", "/v1/models", client.key))
    assert left == BUDGET - answered * COST
    disk.full = False
    eventually(lambda: client.call().status_code == 200, "it does not recover")
