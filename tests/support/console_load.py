"""Real calls from many users at once, one of whom floods, for as long as a test looks."""

import threading

import openai

SMALL = {"workers": 2, "worker_kv_tokens": 512, "overload_high": 0.3, "overload_low": 0.2}
"""Of a server for which a few users are an overload."""


class Load:
    """Threads that call until they are told to stop; a refused call waits a moment and goes on."""

    def __init__(self, server, key, *, users=3, flooders=1, flood=6, max_tokens=24):
        self._stop = threading.Event()
        self.pause_s = 0.0
        """Of each user between calls; may be changed at any time."""
        self.done = 0
        self.refused = 0
        self._lock = threading.Lock()
        self._client = server.openai(key)
        self._model = self._client.models.list().data[0].id
        self._max_tokens = max_tokens
        names = [f"user-{n}" for n in range(users)]
        names += [f"flooder-{n}" for n in range(flooders) for _ in range(flood)]
        self._threads = [
            threading.Thread(target=self._call, args=(name, at), daemon=True)
            for at, name in enumerate(names)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()

    def _call(self, user, at):
        text = f"You are agent {at % 3} of a team. " * 8
        number = 0
        while not self._stop.is_set():
            number += 1
            self._stop.wait(self.pause_s)
            try:
                self._client.chat.completions.create(
                    model=self._model,
                    messages=[{"role": "user", "content": f"{text} {number}"}],
                    max_tokens=self._max_tokens,
                    user=user,
                )
                with self._lock:
                    self.done += 1
            except openai.APIStatusError:
                with self._lock:
                    self.refused += 1
                self._stop.wait(0.3)
            except openai.APIConnectionError:
                return
