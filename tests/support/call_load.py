"""Clients that make calls one after the other until they stop, and note what they saw of each."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from dataclasses import dataclass

import httpx

PATH = "/v1/chat/completions"
DEADLINE_S = 90
PAUSE_S = 0.05
"""Pause in seconds of a client whose call has failed."""

_numbers = itertools.count()
"""Numbers of loads, so that no two have calls in the same runs."""


@dataclass
class SeenCall:
    """A call as its client saw it."""

    run: str
    streams: bool
    relayed: bool
    """The call has an idempotency key, so that the Python relay carries it."""
    record: str = ""
    """Id of the call, once the header of an answer has arrived."""
    status: int = 0
    complete: bool = False


class CallLoad:
    """A number of clients, which take turns with streams and whole calls, and with the keys of apps."""

    def __init__(self, url, keys, *, clients=12, tokens=(10, 60), model="stub"):
        self._url, self._keys, self._tokens, self._model = url, keys, tokens, model
        self._name = f"run-{next(_numbers)}"
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(number,)) for number in range(clients)
        ]
        self.seen = []
        """All calls that were sent."""

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        """Make no further calls, and wait for the ends of those in progress."""
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a call does not end"

    def complete(self, *, since=0):
        """Return the complete calls from the ``since``-th call on."""
        return [call for call in self.seen[since:] if call.complete]

    def _client(self, number):
        key = self._keys[number % len(self._keys)]
        headers = {"Authorization": f"Bearer {key}"}
        turn = number
        with httpx.Client(base_url=self._url, headers=headers, timeout=DEADLINE_S) as client:
            while not self._stop.is_set():
                turn += 1
                run = f"{self._name}-{number}-{turn}"
                call = SeenCall(run, streams=turn % 2 == 0, relayed=turn % 5 == 0)
                self.seen.append(call)
                with contextlib.suppress(httpx.TransportError):
                    self._call(client, call, self._tokens[turn // 2 % len(self._tokens)])
                if not call.complete:
                    self._stop.wait(PAUSE_S)

    def _call(self, client, call, tokens):
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"hello {call.run}"}],
            "max_tokens": tokens,
            "stream": call.streams,
        }
        known = {"X-Interaction-Id": call.run}
        if call.relayed:
            known["Idempotency-Key"] = call.run
        with client.stream("POST", PATH, json=body, headers=known) as answer:
            call.status = answer.status_code
            call.record = answer.headers.get("x-request-id", "")
            text = answer.read().decode()
        if call.status == 200:
            ended = (
                text.endswith("data: [DONE]\n\n") if call.streams else "choices" in json.loads(text)
            )
            call.complete = ended and '"error"' not in text
