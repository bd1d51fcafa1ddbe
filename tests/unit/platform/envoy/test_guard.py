"""The program between the server and Envoy, with a child that counts its signals."""

import os
import signal
import subprocess
import sys

import pytest
from processes import alive, children, eventually

from fairserve.platform.envoy import guard

TIMES = 50
COUNTS = """\
import os, signal, sys
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print(os.getpid(), flush=True)
for line in sys.stdin:
    print(len(got), flush=True)
sys.exit(7)
"""
STARTER = """\
import os, subprocess, sys, threading
for _ in range(30):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
started = subprocess.Popen([sys.executable, *sys.argv[1:3], str(os.getpid()), *sys.argv[3:]])
started.wait()
"""
"""A parent with many threads, each of which has the child for a moment while the process is killed."""


def guarded(parent, program):
    return [guard.__file__, str(parent), sys.executable, "-c", program]


class Guarded:
    """The program with its child, which answers each line with the number of its SIGTERMs."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.child = int(self.process.stdout.readline())

    def signals(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """Let the child end; return the status of the process that was started."""
        self.process.stdin.close()
        try:
            return self.process.wait(60)
        finally:
            self.process.stdout.close()


@pytest.fixture
def running():
    found = Guarded([sys.executable, *guarded(os.getpid(), COUNTS)])
    yield found
    found.process.kill()
    found.end()
    eventually(lambda: not alive(found.child), "the child outlives the guard")


def test_the_first_sigterm_is_passed_on_and_no_other(running):
    assert running.signals() == 0
    os.kill(running.process.pid, signal.SIGTERM)
    eventually(lambda: running.signals() == 1)
    for _ in range(TIMES):
        os.kill(running.process.pid, signal.SIGTERM)
        assert running.signals() == 1


def test_a_killed_parent_is_one_sigterm():
    command = [guard.__file__, sys.executable, "-c", COUNTS]
    found = Guarded([sys.executable, "-c", STARTER, "-I", *command])
    (own,) = children(found.process.pid)
    found.process.kill()
    found.process.wait()
    eventually(lambda: found.signals() == 1, "the child does not learn of it")
    assert {found.signals() for _ in range(TIMES)} == {1}
    assert alive(own)
    found.end()
    eventually(lambda: not alive(own), "the guard outlives its child")


def test_its_status_is_that_of_the_child(running):
    assert running.end() == 7


def test_the_end_of_the_child_by_a_signal_is_its_status():
    found = Guarded([sys.executable, *guarded(os.getpid(), COUNTS)])
    os.kill(found.child, signal.SIGKILL)
    assert found.end() == 128 + signal.SIGKILL


def test_without_its_parent_nothing_is_started():
    nobody = subprocess.run([sys.executable, *guarded(1, "print('started')")], capture_output=True)
    assert (nobody.returncode, nobody.stdout) == (1, b"")
