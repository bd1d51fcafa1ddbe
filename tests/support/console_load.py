"""An overload on demand: runs that hold the workers, and one user who floods.

It takes no time: the calls are held on scripted workers, and the server's clock closes the buckets
of the activity history.
"""

import itertools

import openai
from client_pages import call, hold

HIGH_WATERMARK = 0.3
OPTIONS = {"high_watermark": HIGH_WATERMARK, "low_watermark": 0.2}
SMALL = {"kv_blocks": 256, "system_options": OPTIONS}
"""Settings of a server that is overloaded by a few held calls."""
WORDS = 100
"""Number of words of a held call: six such calls are an overload."""
DEADLINE_S = 60
LIMIT = 20
"""Calls per minute of each user that the app allows under overload."""


class Flood:
    """A flood of calls in one app of a server."""

    _bursts = itertools.count(1)

    def __init__(self, server, app, *, users=6, flooder="flooder-0"):
        self._server = server
        self._flooder = flooder
        self._key = app["api_key"]
        self._users = users

    def burst(self, calls=6):
        """Send calls of the flooder while every user has one in progress; return how many were rejected.

        The sample of the bucket is taken while they are in progress.
        """
        runs = [f"run-{next(self._bursts)}" for _ in range(self._users)]
        held = [
            hold(self._server, self._key, f"user-{n}", run, words=WORDS)
            for n, run in enumerate(runs)
        ]
        refused = sum(map(self._is_rejected, range(calls)))
        self._server.sample()
        self._server.release()
        for each in held:
            each.result(DEADLINE_S)
        for run in runs:  # else they keep their memory: the clock stands still
            self._server.request("POST", f"/v1/interactions/{run}/close", self._key)
        return refused

    def _is_rejected(self, number):
        try:
            call(self._server, self._key, self._flooder)
        except openai.RateLimitError:
            return True
        return False
