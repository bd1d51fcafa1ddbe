"""For tests that drive other processes: a free port, and the one wait for what those come to."""

import socket
import time

PAUSE_S = 0.02


def free_port():
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(probe, what="it did not happen", *, deadline_s=90):
    """Ask another process until the answer is true; returns it. ``what`` may be a function."""
    end_s = time.monotonic() + deadline_s
    while not (found := probe()):
        assert time.monotonic() < end_s, what() if callable(what) else what
        time.sleep(PAUSE_S)
    return found
