"""Helpers of tests that drive other processes: a free port, and one function to wait for effects."""

import itertools
import os
import socket
import time
from pathlib import Path

PAUSE_S, LAST_PAUSE_S = 0.02, 0.1
PORTS = range(10_000, 32_000)
"""Range of ports below those that systems assign to connections, so that they stay free."""
_next_port = itertools.count(os.getpid() * 101)  # test processes begin at different ports


def free_port():
    """Return a free TCP port of the loopback that this process has not used yet."""
    for number in itertools.islice(_next_port, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def read_of(path):
    """Return the text of a file of a process or a thread; empty if it has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):  # ended before the file was opened, or since
        return ""


def alive(pid):
    """Return whether a process runs; one that waits for its parent's notice does not."""
    state = read_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def children(pid):
    """Return the ids of the child processes of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in lists for each in read_of(path).split()]


def eventually(probe, what="it did not happen", *, deadline_s=90):
    """Poll another process until the result is true; return it. ``what`` may be a function.

    A pause is a tenth of the time so far: polls of a long wait would take the time of what it waits for.
    """
    start_s = time.monotonic()
    while not (found := probe()):
        waited_s = time.monotonic() - start_s
        assert waited_s < deadline_s, what() if callable(what) else what
        time.sleep(min(max(PAUSE_S, waited_s / 10), LAST_PAUSE_S))
    return found
