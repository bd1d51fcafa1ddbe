"""``fairserve worker``: one engine process that serves HTTP until it is stopped.

When it is ready it prints one line of JSON on standard output:
``{"event": "ready", "port", "model", "kv_capacity_tokens", "max_model_len", "kv_events_endpoint",
"kv_events_replay_endpoint"}``, the last two empty where KV events are off. SIGTERM and SIGINT
drain it (new calls are rejected, running ones end within ``--drain-limit``) and it exits with 0; a
second signal ends it at once. Every flag ``--x-y`` is also ``FAIRSERVE_WORKER_X_Y``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from fairserve.engine.local_scheduler import make_local_scheduler, read_options
from fairserve.engine.torch.engine_options import Preemption
from fairserve.engine.torch.model_hub import check_model
from fairserve.scheduling.base import LocalScheduler

if TYPE_CHECKING:
    from fairserve.engine.kv_events.publisher import KvPublisher
    from fairserve.engine.torch.model_loader import LoadedModel
    from fairserve.engine.torch.page_changes import PageChange

_ENVIRONMENT = "FAIRSERVE_WORKER_"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}
_CPU_KV_TOKENS = 65_536
_CPU_KV_BYTES = 2 * 2**30
_CUDA_KV_SHARE = 0.85
"""Share of the free GPU memory that the KV cache takes; the rest is for activations."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Values of the flags. None: decided by model and device."""

    model: str
    host: str
    port: int
    kv_tokens: int | None
    max_batch: int | None
    token_budget: int | None
    preemption: Preemption
    local_scheduler: str
    scheduler_options: Mapping[str, object]
    dtype: str
    device: str
    max_queue: int
    drain_limit_s: float
    parent_pid: int | None
    exit_with_parent: bool
    kv_events_endpoint: str
    kv_events_replay_endpoint: str
    kv_events_buffer_steps: int


def parse_options(argv: Sequence[str], environment: Mapping[str, str]) -> WorkerOptions:
    """Read the flags, with the environment for those not given. Exits with 2 on errors."""
    parser = _parser(environment)
    values = parser.parse_args(argv)
    if values.preemption not in get_args(Preemption):
        allowed = ", ".join(get_args(Preemption))
        parser.error(f"--preemption is {values.preemption!r}; allowed: {allowed}")
    try:
        options = read_options(values.scheduler_option)
    except ValueError as error:
        parser.error(f"--scheduler-option: {error}")
    return WorkerOptions(
        model=values.model,
        host=values.host,
        port=values.port,
        kv_tokens=values.kv_tokens,
        max_batch=values.max_batch,
        token_budget=values.token_budget,
        preemption=values.preemption,
        local_scheduler=values.local_scheduler,
        scheduler_options=options,
        dtype=values.dtype,
        device=values.device,
        max_queue=values.max_queue,
        drain_limit_s=values.drain_limit,
        parent_pid=values.parent_pid,
        exit_with_parent=values.exit_with_parent or values.parent_pid is not None,
        kv_events_endpoint=values.kv_events_endpoint,
        kv_events_replay_endpoint=values.kv_events_replay_endpoint,
        kv_events_buffer_steps=values.kv_events_buffer_steps,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairserve worker",
        description="Serve one model over HTTP in vLLM's dialect.",
        epilog=f"Every flag is also an environment variable, for example {_ENVIRONMENT}MAX_BATCH.",
    )

    def add(flag: str, kind: type, default: object, text: str) -> None:
        variable = _ENVIRONMENT + flag[2:].replace("-", "_").upper()
        # argparse converts a default that is a string like the value of a flag.
        parser.add_argument(flag, type=kind, default=environment.get(variable, default), help=text)

    add("--model", str, "fairserve-tiny-random", "checkpoint folder, hub id, or the built-in model")
    add("--host", str, "127.0.0.1", "address to listen on")
    add("--port", int, 0, "port to listen on; 0 takes a free one")
    add("--kv-tokens", int, None, "tokens in the KV cache (default: by device and memory)")
    add("--max-batch", int, None, "sequences that run at once (default: 32, on cuda 256)")
    add("--token-budget", int, None, "tokens per forward pass (default: 512, on cuda 8192)")
    add(
        "--preemption",
        str,
        "fair",
        "victim of preemption when no page is free: fair, latest; never: none",
    )
    add("--local-scheduler", str, "dlpm", "policy by which waiting calls enter the batch")
    add("--dtype", str, "auto", "float32, bfloat16, float16; auto: float32, on cuda bfloat16")
    add("--device", str, "auto", "cpu, cuda, cuda:N; auto: cuda if there is one")
    add("--max-queue", int, 1024, "sequences that may wait; further calls get 503")
    add("--drain-limit", float, 30.0, "seconds that calls may still take after SIGTERM")
    add("--parent-pid", int, None, "end when this process is no longer the parent")
    add(
        "--kv-events-endpoint",
        str,
        "",
        "endpoint of the KV events, over ZMQ: tcp://HOST:PORT (0 takes a free port), ipc://PATH or "
        "ipc://FOLDER/*; prompts cross it in clear (default: none)",
    )
    add("--kv-events-replay-endpoint", str, "", "endpoint of replays of KV events")
    add(
        "--kv-events-buffer-steps",
        int,
        1000,
        "batches kept for replays; older ones are folded into one",
    )
    listed = environment.get(_ENVIRONMENT + "SCHEDULER_OPTION", "")
    parser.add_argument(
        "--scheduler-option",
        action="append",
        default=[item for item in listed.split(",") if item],
        metavar="KEY=VALUE",
        help="option of the local scheduler, repeatable (environment: separated by commas)",
    )
    text = environment.get(_ENVIRONMENT + "EXIT_WITH_PARENT", "").lower()
    if text not in _TRUE | _FALSE:
        parser.error(f"{_ENVIRONMENT}EXIT_WITH_PARENT is {text!r}; allowed: true, false")
    parser.add_argument(
        "--exit-with-parent",
        action=argparse.BooleanOptionalAction,
        default=text in _TRUE,
        help="end when the process that started this one ends",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker until it is stopped. Return the exit status."""
    options = parse_options(sys.argv[1:] if argv is None else argv, os.environ)
    parent = (options.parent_pid or os.getppid()) if options.exit_with_parent else 0
    try:
        scheduler = make_local_scheduler(options.local_scheduler, options.scheduler_options)
        check_model(options.model)
        # Imported late: torch takes seconds, and wrong flags should not wait for it.
        from fairserve.engine.torch.host_threads import apart
        from fairserve.engine.torch.model_loader import load_model

        loaded = apart(lambda: load_model(options.model, options.dtype, options.device))
        return asyncio.run(_serve(options, loaded, scheduler, parent))
    except (ValueError, OSError) as error:
        print(f"fairserve worker: {error}", file=sys.stderr)
        # For the parent process: the same start would fail again.
        print(json.dumps({"event": "failed", "reason": str(error)}), flush=True)
        return 1


def _kv_tokens(options: WorkerOptions, loaded: LoadedModel) -> int:
    if options.kv_tokens is not None:
        return options.kv_tokens
    if loaded.device.type == "cuda":
        return int(loaded.free_device_bytes() * _CUDA_KV_SHARE) // loaded.kv_bytes_per_token
    return min(_CPU_KV_TOKENS, _CPU_KV_BYTES // loaded.kv_bytes_per_token)


def _kv_publisher(options: WorkerOptions) -> KvPublisher[PageChange] | None:
    if not options.kv_events_endpoint:
        if options.kv_events_replay_endpoint:
            raise ValueError("--kv-events-replay-endpoint needs --kv-events-endpoint")
        return None
    from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions
    from fairserve.engine.torch.page_changes import PageNames

    return KvPublisher(
        KvPublisherOptions(
            options.kv_events_endpoint,
            options.kv_events_replay_endpoint,
            options.kv_events_buffer_steps,
        ),
        PageNames().events,
    )


async def _serve(
    options: WorkerOptions, loaded: LoadedModel, scheduler: LocalScheduler, parent: int
) -> int:
    import uvicorn

    from fairserve.engine.torch.engine_options import EngineOptions
    from fairserve.engine.torch.server import WorkerServer

    publisher = _kv_publisher(options)
    on_gpu = loaded.device.type == "cuda"
    max_batch = options.max_batch or (256 if on_gpu else 32)
    worker = WorkerServer(
        loaded,
        scheduler,
        EngineOptions(
            kv_tokens=_kv_tokens(options, loaded),
            max_batch=max_batch,
            token_budget=options.token_budget or max(8192 if on_gpu else 512, max_batch),
            preemption=options.preemption,
        ),
        options.max_queue,
        publisher,
    )

    ready = asyncio.Event()

    class Server(uvicorn.Server):
        """A server that leaves signals to this module: uvicorn would stop listening before the drain."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    listener = socket.create_server((options.host, options.port), family=_family(options.host))
    server = Server(
        uvicorn.Config(
            worker.app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            # Longer than clients keep idle connections, so that clients close them first.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if publisher is not None:
        publisher.start()
    worker.engine.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(_watch_parent(parent)) if parent else None
    if not await _first(ready, serving):
        return 1
    print(
        json.dumps(
            {
                "event": "ready",
                "port": listener.getsockname()[1],
                "model": loaded.name,
                "kv_capacity_tokens": worker.engine.capacity_tokens,
                "max_model_len": worker.engine.max_model_len,
                "kv_events_endpoint": publisher.endpoint if publisher else "",
                "kv_events_replay_endpoint": publisher.replay_endpoint if publisher else "",
            }
        ),
        flush=True,
    )
    if not await _first(stopping, serving):
        return 1
    await worker.drain(options.drain_limit_s)
    server.should_exit = True
    await serving
    worker.engine.stop()
    await worker.close()
    if publisher is not None:
        publisher.close()
    if watching is not None:
        watching.cancel()
    return 0


async def _first(event: asyncio.Event, serving: asyncio.Task[None]) -> bool:
    """Wait for the event. Return False if the server ended before it, by itself. Raises its error."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return True
    waiting.cancel()
    serving.result()
    return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _watch_parent(parent: int) -> None:
    """End the process at once when its parent is no longer the one that started it.

    Polled: Linux' parent death signal comes when the parent's *thread* ends, too.
    """
    while os.getppid() == parent:  # noqa: ASYNC110  a change of the parent sends no event
        await asyncio.sleep(0.5)
    os._exit(1)
