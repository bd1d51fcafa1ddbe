"""CPU and memory of processes with descendants, against what the processes know of themselves."""

import json
import os
import sys

import psutil
import pytest
from processes import eventually

from fairserve.benchmarks.bench.gateway.processes import (
    BenchProcess,
    BenchStartError,
    free_port,
    wait_until,
)

BURN_S = 0.3
SLACK_S = 0.25
"""CPU time of an interpreter's start and end, several times over."""
TICKS_S = 0.02
"""Resolution of the CPU time of an ended process, user and system."""
BURNER = f"""
import subprocess, sys, time
def burn():
    while time.process_time() < {BURN_S}:
        pass
"""
PARENT = (
    BURNER
    + """
child = [sys.executable, "-c", "%s"]
ended = subprocess.run(child + ["ends"], check=True, stdout=subprocess.DEVNULL)
alive = subprocess.Popen(child + ["stays"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
alive.stdout.readline()
burn()
print(time.process_time(), flush=True)
sys.stdin.read()
alive.communicate()
"""
    % (
        BURNER.replace("\n", "\\n")
        + "\\nburn()\\nprint(flush=True)\\nif sys.argv[1] == 'stays': sys.stdin.read()"
    )
)


def has_ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def started(tmp_path):
    """Return a function that starts a Python program with pipes; it is stopped at the end."""
    processes = []

    def start(program):
        process = BenchProcess([sys.executable, "-c", program], tmp_path / "log", piped=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.stop()


def test_cpu_is_that_of_a_process_its_children_and_those_that_ended(started):
    process = started(PARENT)
    own_s = float(process.read())
    found_s = process.tree.cpu_s()
    least_s = own_s + 2 * BURN_S
    assert least_s - TICKS_S <= found_s <= least_s + 3 * SLACK_S
    assert process.tree.cpu_s() - found_s < SLACK_S, "idle processes use nothing"


def test_cpu_is_finer_than_the_clock_tick_of_the_kernel(started):
    process = started(
        "import sys, time\nfor line in sys.stdin: print(time.process_time(), flush=True)"
    )
    found = []
    for _ in range(20):
        process.ask("")
        found.append(process.tree.cpu_s())
    assert found == sorted(found)
    assert len({round(each % 0.01, 7) for each in found}) > 10


def test_memory_that_processes_share_counts_once(started):
    size = 64_000_000
    process = started(
        f"import os, sys\nkept = b'x' * {size}\nif os.fork(): print(flush=True)\nsys.stdin.read()"
    )
    process.read()
    assert len(list(process.tree.members())) == 2
    assert size <= process.tree.memory_bytes() < 1.5 * size


def test_a_process_that_is_gone_has_no_members(started):
    process = started("")
    process.process.wait()
    assert process.tree.cpu_s() == 0.0


def test_what_a_process_started_is_stopped_with_it(started):
    process = started(PARENT)
    process.read()
    members = list(process.tree.members())
    assert len(members) == 2
    process.stop()
    for member in members:
        eventually(lambda member=member: has_ended(member), f"{member} is still running")


def test_a_process_that_ends_at_its_start_is_an_error_with_its_log(started, tmp_path):
    process = started("raise SystemExit('the port is taken')")
    process.process.wait()
    with pytest.raises(BenchStartError, match="the port is taken"):
        wait_until(lambda: False, process, 60)
    with pytest.raises(BenchStartError, match="the port is taken"):
        process.read()


def test_a_process_that_is_never_ready_is_an_error(started):
    with pytest.raises(BenchStartError, match="was not ready in 0 s"):
        wait_until(lambda: False, started("import sys; sys.stdin.read()"), 0)


def test_cores_are_those_that_were_given(tmp_path):
    core = min(os.sched_getaffinity(0))
    program = "import json, os; input(); print(json.dumps(list(os.sched_getaffinity(0))))"
    process = BenchProcess(
        [sys.executable, "-c", program], tmp_path / "log", cores=[core], piped=True
    )
    try:
        assert json.loads(process.ask("")) == [core]
    finally:
        process.stop()


def test_a_free_port_is_free():
    assert 0 < free_port() < 65536
