"""The sockets on which a server listens: bound here, or passed by systemd, which keeps them.

A unit with a socket of its own (``deploy/systemd``) restarts without an error for a client: connections
that arrive between two servers wait in the socket until the next one accepts them.
"""

from __future__ import annotations

import errno
import os
import socket

FIRST_PASSED = 3
"""Descriptor of the first socket that systemd passes (sd_listen_fds(3))."""


class StartError(Exception):
    """The server cannot start here. The message states the cause and the next step."""


def passed_listener() -> socket.socket | None:
    """Return the listener that systemd has passed to this process; None if there is none.

    Its variables are removed, so that no child process takes the socket for its own. Raises StartError
    for anything but one listener of TCP.
    """
    process = os.environ.pop("LISTEN_PID", "")
    passed = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):
        return None
    if passed != "1":
        raise StartError(f"systemd passes {passed or 0} sockets (LISTEN_FDS); allowed: 1")
    try:
        listener = socket.socket(fileno=FIRST_PASSED)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(f"the socket of systemd cannot be used: {error.strerror}") from error
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.detach()
        raise StartError("the socket of systemd must be a ListenStream with an address and a port")
    listener.set_inheritable(False)
    return listener


def bound_listener(host: str, port: int, flag: str, *, shared: bool = False) -> socket.socket:
    """Return a new listener. Raises StartError.

    Several processes may have a ``shared`` one at a port, between which the kernel divides connections.
    It gets none until the server listens, when it has started.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not shared:
            return socket.create_server((host, port), family=family, backlog=2048)
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = " (0 takes a free one)" if flag == "--port" else ""
            raise StartError(
                f"port {port} is in use; choose another one with {flag}{free}"
            ) from error
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
