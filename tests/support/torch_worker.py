"""A worker process with a torch engine that all tests of one test process share.

Such a process takes seconds to start. Tests that kill, drain or configure a worker start their own
(:mod:`worker_process`). The others use this one, with distinct prompts or cache salts, as it keeps
its prefix cache, and leave it idle.
"""

import atexit
import functools

from gateway_server import ThreadServer
from worker_process import MODEL, Worker

ANYWHERE = "tcp://127.0.0.1:0"


@functools.cache
def shared_worker(model=MODEL):
    """Return the worker of a model, started by the first test that requests it, with KV events."""
    worker = Worker(
        "--model", model, "--kv-events-endpoint", ANYWHERE, "--kv-events-replay-endpoint", ANYWHERE
    )  # fmt: skip
    atexit.register(worker.stop)
    return worker


def torch_server(data_dir, model=MODEL):
    """Return a server in a thread of the test, in front of that worker."""
    return ThreadServer(data_dir, worker_urls=shared_worker(model).url)
