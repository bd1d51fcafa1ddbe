"""Count the files of the product that one streamed chat call passes through.

    python tests/support/call_files.py

A whole server in a thread sends a call to a scripted worker twice: the first call fills the caches, the
second is traced. All code in the context of its request counts, and the threads that it waits for.
The journal, the ledger and the ticks of control run outside that context and do not count.
"""

from __future__ import annotations

import contextvars
import tempfile
import threading
from collections import Counter
from pathlib import Path

from gateway_server import ThreadServer
from scripted_worker import ScriptedWorker

from fairserve.platform.server.http.access_log import AccessLog

DEADLINE_S = 90
ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("platform", "interactions", "throttling", "scheduling", "engine")
PATH = "/v1/chat/completions"
BODY = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "ok how many files"}],
    "max_tokens": 20,
    "stream": True,
}

counted = contextvars.ContextVar("counted", default=False)


def files_of_a_call() -> list[Path]:
    """Return the files, relative to the repository."""
    called: set[str] = set()
    tracing, ended = threading.Event(), threading.Event()

    def trace(frame, event, arg):
        if tracing.is_set() and counted.get():
            called.add(frame.f_code.co_filename)

    passing = AccessLog.__call__

    async def marked(self, scope, receive, send):
        if scope.get("path") == PATH:
            counted.set(True)
        await passing(self, scope, receive, send)
        if tracing.is_set():
            ended.set()

    AccessLog.__call__ = marked
    threading.settrace(trace)
    worker = ScriptedWorker()
    with tempfile.TemporaryDirectory() as folder:
        server = ThreadServer(Path(folder) / "data", "--worker-urls", worker.url)
        try:
            assert server.post(PATH, BODY).status_code == 200
            tracing.set()
            answer = server.post(PATH, BODY)
            assert ended.wait(DEADLINE_S), "its line in the log is part of it"
            tracing.clear()
            assert answer.text.endswith("data: [DONE]\n\n"), answer.text
        finally:
            threading.settrace(None)
            AccessLog.__call__ = passing
            server.close()
            worker.close()
    return sorted(
        path.relative_to(ROOT)
        for name in called
        if (path := Path(name).resolve()).is_relative_to(ROOT)
        and path.relative_to(ROOT).parts[0] in ROOMS
    )


def main() -> None:
    """Print the files by package, and their number."""
    files = files_of_a_call()
    for path in files:
        print(path)
    print(len(files), dict(Counter(str(Path(*path.parts[:2])) for path in files)))


if __name__ == "__main__":
    main()
