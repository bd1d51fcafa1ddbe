"""The scaled-down demo runs with real servers, workers and clients, and leaves none of them behind."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from processes import eventually

GROUP_KEYS = {
    "ttft_s", "queue_delay_s", "refused_calls", "refused_mid_run", "completed_interactions",
    "aborted_interactions", "wasted_tokens", "prefix_hit_rate", "per_client",
}  # fmt: skip
MARK = "DEMO_TEST_MARK"

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def _accept_interrupts():
    """Accept SIGINT: a shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class DemoProcess:
    """``fairserve demo`` as a process whose descendants carry a mark in their environment."""

    def __init__(self, folder, *arguments):
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.folder = folder
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairserve.platform.server.cli", "demo", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, name: value, "TMPDIR": str(folder)},
            preexec_fn=_accept_interrupts,
        )

    def left(self):
        """Return ids and command lines of the processes that carry the mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
        return found

    def assert_nothing_left(self):
        """Check immediately that no process and no folder is left: the demo waits for their ends."""
        assert not self.left()
        assert not list(self.folder.glob("fairserve-demo-*"))


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_demo_end_to_end(tmp_path):
    """A limit per minute cuts runs that complete under the system ``fairserve``."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    out = tmp_path / "demo.json"
    demo = DemoProcess(
        folder,
        *("--json", str(out), "--systems", "rpm-9,fairserve", "--seed", "1"),
        *("--workers", "1", "--seconds", "3", "--drain-seconds", "200", "--memory-seconds", "4"),
    )
    stdout, stderr = demo.process.communicate(timeout=560)
    assert demo.process.returncode == 0, stdout + stderr
    demo.assert_nothing_left()

    assert "random weights" in stderr
    assert "TTFT p50 / p99, well-behaved" in stdout
    written = json.loads(out.read_text())
    assert written.keys() == {"systems", "memory", "machine", "workload"}
    assert list(written["systems"]) == ["rpm-9", "fairserve"]
    assert all(each["begun_runs"] > 0 for each in written["memory"].values())
    for summary in written["systems"].values():
        assert set(summary["groups"]) == {"well_behaved", "flooder"}
        assert summary["groups"]["well_behaved"].keys() >= GROUP_KEYS
        assert summary["completed_interactions"] > 0, stdout + stderr
        assert summary["ttft_s"]["p50"] > 0
        assert summary["queue_delay_s"]["p50"] >= 0
        assert summary["prefix_hit_rate"] > 0
        assert summary["throughput_tokens_per_s"]["decode"] > 0
        assert summary["satisfied"].keys() == summary["per_client"].keys()
    assert written["systems"]["rpm-9"]["all_waits"]["ttft_s"]["p99"] is None, "some are refused"
    assert written["systems"]["fairserve"]["all_waits"]["ttft_s"]["p99"] > 0
    assert written["systems"]["fairserve"]["satisfied_min"] > 0.9
    assert written["systems"]["rpm-9"]["refused_mid_run"] > 0
    assert written["systems"]["fairserve"]["refused_mid_run"] == 0


def test_an_interrupted_demo_leaves_nothing(tmp_path):
    """The interrupt arrives while agents are served, after the limit rejected a call."""
    demo = DemoProcess(
        tmp_path,
        *("--systems", "rpm-1", "--workers", "1", "--seconds", "20", "--drain-seconds", "200"),
    )
    lines = []
    for line in demo.process.stderr:
        lines.append(line)
        if re.search(r" [1-9]\d* rejected", line):
            break
    assert len(demo.left()) >= 3, ("the demo, its server and its worker", lines)
    demo.process.send_signal(signal.SIGINT)
    stdout, stderr = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 130, stdout + stderr
    demo.assert_nothing_left()


def test_an_interruption_during_the_start_leaves_nothing(tmp_path):
    demo = DemoProcess(tmp_path, "--systems", "fcfs", "--workers", "1")
    eventually(lambda: len(demo.left()) >= 2 or demo.process.poll() is not None)
    assert demo.process.poll() is None
    demo.process.send_signal(signal.SIGTERM)
    stdout, stderr = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 130, stdout + stderr
    demo.assert_nothing_left()
