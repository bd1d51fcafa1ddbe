"""A server whose socket systemd keeps is stopped and started while clients send calls."""

import os
import socket
import sys
import threading
from contextlib import closing

import httpx
import pytest
from gateway_server import ChildServer
from processes import eventually
from server_client import DEADLINE_S

from fairserve.platform.server import listeners
from fairserve.platform.server.listeners import StartError, passed_listener

PATH = "/v1/chat/completions"
BODY = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "ok"}],
    "max_tokens": 20,
}


PASSING = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""


class SocketUnit(ChildServer):
    """Servers one after another on a socket that is passed to each, as systemd does."""

    def __init__(self, data_dir, **flags):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        descriptor = self.listener.fileno()
        self.pass_fds = (descriptor,)
        self.wrapper = (sys.executable, "-c", PASSING, str(descriptor))
        super().__init__(data_dir, start=False, **flags)
        self._own_port = self.listener.getsockname()[1]

    def close(self):
        super().close()
        self.listener.close()


class Traffic(threading.Thread):
    """Sends a call after another, on connections that are ``kept`` or new."""

    def __init__(self, server, *, kept):
        super().__init__(daemon=True)
        self.server, self.kept = server, kept
        self.statuses, self.over = [], threading.Event()

    def run(self):
        headers = {"Authorization": f"Bearer {self.server.app_key}"}
        url = f"http://127.0.0.1:{self.server.port}{PATH}"
        with httpx.Client(timeout=DEADLINE_S) as keeping:
            while not self.over.is_set():
                post = keeping.post if self.kept else httpx.post
                try:
                    answer = post(url, json=BODY, headers=headers, timeout=DEADLINE_S)
                    self.statuses.append(answer.status_code)
                except httpx.HTTPError as error:
                    self.statuses.append(repr(error))

    def wait_for(self, calls):
        """Wait until some more calls were answered."""
        wanted = len(self.statuses) + calls
        while len(self.statuses) < wanted and self.is_alive():
            self.join(0.01)


def test_a_restart_on_a_passed_socket_costs_no_client_an_error(tmp_path, scripted):
    flags = {"worker_urls": scripted[0].url, "drain_timeout_s": 2}
    with closing(SocketUnit(tmp_path / "data", **flags)) as server:
        server.start()
        clients = [Traffic(server, kept=kept) for kept in (False, False, True, True)]
        for client in clients:
            client.start()
        for client in clients:
            client.wait_for(4)
        with server.asking(PATH, BODY | {"messages": [{"role": "user", "content": "hold"}]}):
            eventually(lambda: scripted[0].holding)
            assert server.stop() == 0, "the drain lasts as long as the held call may"
        server.start()
        for client in clients:
            client.wait_for(4)
            client.over.set()
        for client in clients:
            client.join(DEADLINE_S)
        assert {status for client in clients for status in client.statuses} == {200}
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("passed", "kind", "problem"),
    [
        (2, socket.SOCK_STREAM, "systemd passes 2 sockets"),
        (1, socket.SOCK_DGRAM, "must be a ListenStream"),
    ],
)
def test_other_sockets_are_rejected(monkeypatch, passed, kind, problem):
    with socket.socket(type=kind) as given:
        given.bind(("127.0.0.1", 0))
        monkeypatch.setattr(listeners, "FIRST_PASSED", given.fileno())
        monkeypatch.setenv("LISTEN_FDS", str(passed))
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        with pytest.raises(StartError, match=problem):
            passed_listener()
        assert "LISTEN_FDS" not in os.environ
        assert passed_listener() is None, "they are those of another process"
