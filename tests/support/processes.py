"""Helpers of tests that drive other processes: a free port, and one function to wait for effects."""

import itertools
import os
import socket
import time
from pathlib import Path

PAUSE_S = 0.02
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


def alive(pid):
    """Return whether a process runs; one that waits for its parent's notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(pid):
    """Return the ids of the child processes of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in lists for each in path.read_text().split()]


def eventually(probe, what="it did not happen", *, deadline_s=90):
    """Poll another process until the result is true; return it. ``what`` may be a function."""
    end_s = time.monotonic() + deadline_s
    while not (found := probe()):
        assert time.monotonic() < end_s, what() if callable(what) else what
        time.sleep(PAUSE_S)
    return found
