"""A flood on a torch engine is rejected only under overload, and a run in progress never is.

Without overload the same flood is served in full: ``test_gateway/test_scripted_workers.py``.
"""

import itertools
import threading

import openai
from gateway_server import ThreadServer
from processes import eventually
from worker_process import running

THREADS, CALLS = 32, 3
PROFILE = {
    "stages": [{"input_tokens": 120, "system_tokens": 0, "output_tokens": 48}],
    "calls_per_interaction": 4,
}
NUMBER = itertools.count()
"""Prompt template that begins with a distinct number, so that no prompt has a cached prefix."""


def complete(client, user, *, tokens=48, **headers):
    return client.chat.completions.create(
        model="fairserve-tiny-random",
        user=user,
        messages=[{"role": "user", "content": f"{next(NUMBER)}: how do tides work? " * 4}],
        max_tokens=tokens,
        extra_headers={key.replace("_", "-"): value for key, value in headers.items()},
    )


class Flood:
    """A number of simultaneous calls of one user, each in its own interaction."""

    def __init__(self, server, key, *, threads, calls):
        self.server, self.key, self.calls = server, key, calls
        self.served, self.refused, self.other = 0, [], []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def _run(self):
        client = self.server.openai(self.key)
        for _ in range(self.calls):
            try:
                complete(client, "flooder")
            except openai.RateLimitError as error:
                with self.lock:
                    self.refused.append(error)
            except openai.OpenAIError as error:
                with self.lock:
                    self.other.append(error)
            else:
                with self.lock:
                    self.served += 1
        client.close()

    def wait_for_overload(self):
        eventually(
            lambda: self.server.call(self.server.admin_key, "GET", "/admin/cluster")["overloaded"],
            "the flood did not overload the cluster",
        )

    def join(self):
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()


def test_a_flood_is_rejected_under_overload_and_a_run_in_progress_completes(tmp_path):
    with (
        running("--kv-tokens", "1024") as worker,
        ThreadServer(tmp_path / "data", worker_urls=worker.url) as server,
    ):
        key = server.new_app(profile=PROFILE, limits={"user_rpm": 12, "app_rpm": None})["api_key"]
        client = server.openai(key)
        complete(client, "flooder", X_Interaction_Id="the-run", X_Call_Id="first")
        flood = Flood(server, key, threads=THREADS, calls=CALLS).start()
        flood.wait_for_overload()
        for number in range(3):  # a run of the flooding user in progress continues
            complete(client, "flooder", X_Interaction_Id="the-run", X_Call_Id=f"c{number}")
        flood.join()
        assert not flood.other, flood.other[0]
        assert flood.refused, "nothing was refused"
        assert flood.served + len(flood.refused) == THREADS * CALLS
        rejection = flood.refused[0]
        assert rejection.status_code == 429
        assert 1 <= int(rejection.response.headers["retry-after"]) <= 60
        assert rejection.code == "overloaded"
        assert "12" in rejection.body["message"]
        server.call(key, "POST", "/v1/interactions/the-run/close")

        usage = server.wait_for_usage(calls=THREADS * CALLS + 4)
        assert usage["refused"] == len(flood.refused)
        assert usage["completed"] == flood.served + 4
        events = server.call(server.admin_key, "GET", "/admin/throttling/events?limit=500")
        assert len(events["items"]) == len(flood.refused)
        assert {event["reason"] for event in events["items"]} == {"overloaded_user_limit"}
        assert not any(event["mid_run"] for event in events["items"])
        run = server.call(key, "GET", "/v1/interactions/the-run")
        assert (run["state"], run["calls"], run["wasted_tokens"]) == ("complete", 4, 0)
        client.close()
