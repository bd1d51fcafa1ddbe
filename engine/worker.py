"""``fairserve worker``: one engine process that serves HTTP until it is stopped.

When it is ready it prints one line of JSON on standard output:
``{"event": "ready", "port", "model", "kv_capacity_tokens", "max_model_len", "kv_events_endpoint",
"kv_events_replay_endpoint"}``, the last two empty where KV events are off. SIGTERM and SIGINT
drain it (new calls are rejected, running ones end within ``--drain-limit``) and it exits with 0; a
second signal ends it at once. Every flag ``--x-y`` is also ``FAIRSERVE_WORKER_X_Y``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from fairserve.engine.local_scheduler import make_local_scheduler, read_options
from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.engine.torch.engine_options import Preemption
from fairserve.engine.torch.model_hub import check_model
from fairserve.scheduling.base import LocalScheduler

if TYPE_CHECKING:
    from fairserve.engine.kv_events.publisher import KvPublisher
    from fairserve.engine.torch.model_loader import LoadedModel
    from fairserve.engine.torch.page_changes import PageChange

ENVIRONMENT = "FAIRSERVE_WORKER"
"""Prefix of the environment variables; each flag has one."""
_SCHEDULER_OPTIONS = f"{ENVIRONMENT}_SCHEDULER_OPTION"
_CPU_KV_TOKENS = 65_536
_CPU_KV_BYTES = 2 * 2**30
_CUDA_KV_SHARE = 0.85
"""Share of the free GPU memory that the KV cache takes; the rest is for activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Values of the flags. None: decided by model and device."""

    model: Annotated[
        str,
        Option(
            metavar="MODEL",
            help="Checkpoint folder, hub id, or a built-in model: demo, whose answers follow a "
            "script, or fairserve-tiny-random.",
        ),
    ] = BUILTIN_MODEL_NAME
    host: Annotated[str, Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(metavar="N", help="Port to listen on; 0 takes a free one.")] = 0
    kv_tokens: Annotated[
        int | None,
        Option(metavar="TOKENS", help="Tokens in the KV cache; default: by device and memory."),
    ] = None
    max_batch: Annotated[
        int | None,
        Option(metavar="N", help="Sequences that run at once; default: 32, on cuda 256."),
    ] = None
    token_budget: Annotated[
        int | None,
        Option(metavar="TOKENS", help="Tokens per forward pass; default: 512, on cuda 8192."),
    ] = None
    preemption: Annotated[
        Preemption,
        Option(help="Victim of preemption when no page is free: fair, latest; never: none."),
    ] = "fair"
    local_scheduler: Annotated[
        str, Option(metavar="NAME", help="Policy by which waiting calls enter the batch.")
    ] = "dlpm"
    scheduler_option: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="Option of the local scheduler, repeatable. Added to those of "
            f"{_SCHEDULER_OPTIONS}, separated by commas.",
            allow_from_autoenv=False,
        ),
    ] = None
    dtype: Annotated[
        str,
        Option(metavar="TYPE", help="float32, bfloat16, float16; auto: float32, on cuda bfloat16."),
    ] = "auto"
    device: Annotated[
        str, Option(metavar="DEVICE", help="cpu, cuda, cuda:N; auto: cuda if there is one.")
    ] = "auto"
    max_queue: Annotated[
        int, Option(metavar="N", help="Sequences that may wait; further calls get 503.")
    ] = 1024
    drain_limit: Annotated[
        float,
        Option(metavar="SECONDS", help="Time that calls may still take after SIGTERM."),
    ] = 30.0
    parent_pid: Annotated[
        int | None, Option(metavar="PID", help="End when this process is no longer the parent.")
    ] = None
    exit_with_parent: Annotated[
        bool, Option(help="End when the process that started this one ends.")
    ] = False
    kv_events_endpoint: Annotated[
        str,
        Option(
            metavar="ENDPOINT",
            help="Endpoint of the KV events, over ZMQ: tcp://HOST:PORT (0 takes a free port), "
            "ipc://PATH or ipc://FOLDER/*; prompts cross it in clear. Empty: none.",
        ),
    ] = ""
    kv_events_replay_endpoint: Annotated[
        str, Option(metavar="ENDPOINT", help="Endpoint of replays of KV events.")
    ] = ""
    kv_events_buffer_steps: Annotated[
        int,
        Option(metavar="N", help="Batches kept for replays; older ones are folded into one."),
    ] = 1000

    @property
    def parent(self) -> int:
        """Return the process whose end ends this one; 0 if there is none."""
        return self.parent_pid or (os.getppid() if self.exit_with_parent else 0)

    def scheduler_options(self) -> dict[str, object]:
        """Return the options of the local scheduler. Raises BadParameter."""
        listed = os.environ.get(_SCHEDULER_OPTIONS, "").split(",")
        try:
            return read_options([*filter(None, listed), *(self.scheduler_option or ())])
        except ValueError as error:
            raise BadParameter(f"--scheduler-option: {error}") from error


def worker(options: WorkerOptions) -> int:
    """Serve one model over HTTP in vLLM's dialect, until it is stopped."""
    scheduler_options = options.scheduler_options()
    parent = options.parent  # before the model is loaded, in which time it may end
    try:
        scheduler = make_local_scheduler(options.local_scheduler, scheduler_options)
        check_model(options.model)
        # Imported late: torch takes seconds, and wrong flags should not wait for it. Its modules stay:
        # collections would visit their 400,000 objects, 0.2 s each, also when the process ends.
        gc.disable()
        from fairserve.engine.torch.host_threads import apart
        from fairserve.engine.torch.model_loader import load_model

        loaded = apart(lambda: load_model(options.model, options.dtype, options.device))
        gc.freeze()
        gc.enable()
        return asyncio.run(_serve(options, loaded, scheduler, parent))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fairserve"):
            raise
        return _fail(f"{error.name} is not installed: pip install 'fairserve[torch]'")
    except (ValueError, OSError) as error:
        return _fail(str(error))


def _fail(reason: str) -> int:
    """Report why the worker cannot start; the parent process then does not start it again."""
    print(f"fairserve worker: {reason}", file=sys.stderr)
    print(json.dumps({"event": "failed", "reason": reason}), flush=True)
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
    await worker.drain(options.drain_limit)
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
