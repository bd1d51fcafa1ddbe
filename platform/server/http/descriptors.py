"""File descriptors of the process: raises the soft limit, and reserves some for the server itself.

A connection of a client may need a second descriptor for the connection to a worker. The database, the
journal, the workers' processes and outgoing requests have a reserve that clients cannot use.
"""

from __future__ import annotations

import contextlib
import resource

RESERVED = 256
"""Descriptors for the server's own files and sockets; at most half of all."""
PER_CONNECTION = 2
"""The client's socket and the worker's."""
UNLIMITED = 1 << 20


def descriptor_limit() -> int:
    """Return the number of open files that a server can have here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptor_limit()
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(OSError, ValueError):  # a kernel may allow less than the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_within(descriptors: int) -> int:
    """Return the connections of clients that leave the server its reserve; at least 1."""
    return max(1, (descriptors - min(RESERVED, descriptors // 2)) // PER_CONNECTION)
