"""A tenant with an app, a receiver on the loopback, and a ledger that writes as the server's does."""

import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from call_records import call_record
from sqlalchemy import select

from fairserve.platform.background.webhooks.delivery import deliver_due
from fairserve.platform.control.messages import InteractionRecord, Rows
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent
from fairserve.platform.server.settings import Settings

EVERYTHING = ["interaction.finished", "budget.reached", "calls.throttled"]


class Received(NamedTuple):
    path: str
    headers: dict
    body: bytes

    @property
    def id(self):
        return self.headers["webhook-id"]


class Receiver:
    """An HTTP server that keeps its requests, and returns scripted answers."""

    def __init__(self, tls=None):
        self.received = []
        self.answers = []
        """Status, headers and body of the next answers; then 200."""
        self.by_path = {}
        """Constant answers by path. A body of None is promised and never sent."""
        self.closing = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                assert receiver.hold.wait(60)
                status, more, text = receiver.by_path.get(self.path) or (
                    receiver.answers.pop(0) if receiver.answers else (200, {}, b"")
                )
                try:
                    self.send_response(status)
                    for name, value in more.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", "9" if text is None else str(len(text)))
                    self.end_headers()
                    if text is None:
                        receiver.closing.wait(60)
                    else:
                        self.wfile.write(text)
                except OSError:
                    pass  # the sender has disconnected

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self):
        self.hold.set()
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Clock:
    """The clock of deliverers, moved only by the test."""

    def __init__(self):
        self.time = utc_now()

    def __call__(self):
        return self.time

    def catch_up(self):
        """Move past the times written in real time."""
        self.time = max(self.time, utc_now())

    def pass_s(self, seconds):
        self.time += timedelta(seconds=seconds)


class WebhookWorld:
    """A tenant, a receiver and a ledger; by default calls are accepted at ``began``.

    One time for all avoids that a day passes between calls. It is the time of the last request, as
    an endpoint gets nothing from before its registration.
    """

    def __init__(self, management, receiver, **settings):
        self.began = utc_now()
        self.management = management
        self.receiver = receiver
        self.settings = management.state.settings = Settings(
            data_dir=management.state.settings.db.data_dir,
            webhook_allowed_networks="127.0.0.0/8",
            **settings,
        )
        self.sessions = management.state.session_factory
        self.hasher = management.hasher
        self.tenant, self.other = management.new_tenant("one"), management.new_tenant("other")
        self.app, self.foreign_app = management.new_app(self.tenant), management.new_app(self.other)
        self.platform = management.platform
        self.clock = Clock()

    def call(self, method, path, body=None, *, key=None, status=200, **query):
        key = key or self.tenant["api_key"]
        answer = self.management.call(key, method, path, body, status=status, **query)
        self.clock.catch_up()
        self.began = utc_now()
        return answer

    def register(self, *, url=None, events=EVERYTHING, key=None, **more):
        body = {"url": url or self.receiver.url, "events": list(events), **more}
        return self.call("POST", "/v1/webhooks", body, key=key, status=201)

    def write(self, calls=(), runs=()):
        """Write as the ledger's thread does."""
        self.platform.storage.rows.write(Rows(list(calls), list(runs)))
        self.clock.catch_up()

    def run(self, name="run", *, tenant=None, app=None, user="ann", ended_at=None, **more):
        ended_at = ended_at or utc_now().timestamp()
        fields = {"state": "complete", "calls": 2, "tokens": 30, "wasted_tokens": 0} | more
        return InteractionRecord(
            interaction_id=name,
            tenant=(tenant or self.tenant)["id"],
            app=(app or self.app)["id"],
            user=user,
            opened_at=ended_at - 5,
            ended_at=ended_at,
            **fields,
        )

    def record(self, name, *, tenant=None, app=None, user="ann", at=None, **more):
        """Return the record of a call, by default one that completed."""
        at = at or self.began.timestamp()
        fields = {"outcome": "completed", "input_tokens": 10, "output_tokens": 3} | more
        return call_record(
            name,
            tenant=(tenant or self.tenant)["id"],
            app=(app or self.app)["id"],
            user=user,
            interaction_id=f"run-of-{name}",
            accepted_at=at,
            **fields,
        )

    def refused(self, name, reason="overloaded_user_limit", **more):
        fields = {
            "outcome": "refused",
            "input_tokens": 0,
            "output_tokens": 0,
            "refusal_reason": reason,
            "refusal_scope": "user",
            "refusal_limit": 5,
            "refusal_count": 6,
            "refusal_window_s": 60.0,
            "refusal_retry_after_s": 12.5,
        }
        return self.record(name, **fields | more)

    def deliver(self, **more):
        more = {"now": self.clock, "timeout_s": 5.0, **more}
        return deliver_due(self.sessions, self.settings.background, self.hasher, **more)

    def rows(self, model):
        with self.sessions() as session:
            return session.scalars(select(model)).all()

    @property
    def endpoints(self):
        return self.rows(WebhookEndpoint)

    @property
    def events(self):
        return self.rows(WebhookEvent)

    @property
    def deliveries(self):
        return self.rows(WebhookDelivery)

    def states(self):
        return sorted(delivery.state for delivery in self.deliveries)


def epoch(year, month, day, hour=0):
    return datetime(year, month, day, hour, tzinfo=UTC).timestamp()
