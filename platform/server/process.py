"""The server's process: locks of its data, socket, signals, and the banner.

One control writes one database (:mod:`fairserve.platform.control.lease`): a second server is rejected
before it changes anything. After the first SIGINT or SIGTERM the port stays open and new calls
answer 503, until those in progress have ended or ``drain_timeout_s`` is over; a second signal exits
at once, and the next start closes the calls that were open. With a configuration file SIGHUP reloads it;
without one it ends the process, as it does when the terminal closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import signal
import socket
import stat
import sys
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import uvicorn
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Scope

from fairserve.engine.allocator import return_freed_memory
from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME, DEMO_MODEL_NAME
from fairserve.platform.base.garbage import SmallCollections
from fairserve.platform.control.lease import Lease, LeaseTakenError
from fairserve.platform.db.engine import SessionFactory, connect
from fairserve.platform.db.secret_key import SecretKeyError
from fairserve.platform.fleet.fleet_file import FleetFileError, read_fleet
from fairserve.platform.fleet.supervisor import WorkersFailedError
from fairserve.platform.server.backup.archive import ArchiveError
from fairserve.platform.server.backup.restore import check_restored
from fairserve.platform.server.configuration.fleet_section import fleet_parser
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.doctor.redis_server import redis_findings
from fairserve.platform.server.http.connections import Connections
from fairserve.platform.server.http.descriptors import connections_within, raise_descriptor_limit
from fairserve.platform.server.http.protocol import LimitedProtocol, RequestLimits
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.listeners import StartError, bound_listener, passed_listener
from fairserve.platform.server.locks import LockTakenError, held_lock
from fairserve.platform.server.logs import logging_to
from fairserve.platform.server.metrics.endpoints import metrics_app
from fairserve.platform.server.metrics.listener import serving_metrics
from fairserve.platform.server.reloader import Reloader, Reread
from fairserve.platform.server.settings import Settings

if TYPE_CHECKING:
    from fairserve.platform.server.picker import Picker

logger = logging.getLogger(__name__)

TAKEN_OVER = "another server has taken over the database"
HANDOVER_S = 1.0
"""Seconds for which open connections may send one more request, if the next server gets the new ones."""
AFTER_DRAIN_S = 5
"""Seconds that answers may take to reach their clients after the drain."""
KEEP_ALIVE_TIMEOUT_S = 75
"""Seconds for which a connection may be idle between two requests; a proxy's must be shorter."""
SWITCH_S = 0.0005
"""Interval at which Python may switch threads, in seconds."""


def serve(
    settings: Settings, *, reread: Reread | None = None, addition: Picker | None = None
) -> int:
    """Run the server until it is stopped; returns the exit code.

    ``reread`` reads the settings again, as they were read for this start. ``addition`` is one more part.
    """
    try:
        if settings.fleet.fleet_file is not None:
            read_fleet(settings.fleet.fleet_file, fleet_parser(settings))
        try:
            settings.db.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartError(
                f"the data folder {settings.db.data_dir} cannot be created: {error.strerror};"
                " choose another one with --data-dir"
            ) from error
        return ServerProcess(settings, reread=reread, addition=addition).run()
    except (StartError, LeaseTakenError, FleetFileError) as error:
        print(f"fairserve: {error}", file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        print(f"fairserve: the database: {' '.join(str(cause).split())}", file=sys.stderr)
        return 1


class ServerProcess:
    """One run of ``fairserve serve`` or ``fairserve picker``."""

    def __init__(
        self,
        settings: Settings,
        *,
        reread: Reread | None = None,
        addition: Picker | None = None,
    ) -> None:
        """``reread`` and ``addition`` as in :func:`serve`."""
        self._settings = settings
        self._addition = addition
        self._reread = None if settings.server.config is None else reread
        self._open = contextlib.ExitStack()
        """Closes the locks, the socket and the database, also if the server cannot start."""
        self._port = 0
        self._socket_stays = False
        """True if the socket listens on after this process."""
        self._metrics_listener: socket.socket | None = None
        self._garbage = SmallCollections()

    def run(self) -> int:
        """Lock, bind, serve. Raises StartError, SchemaError or SQLAlchemyError before it serves."""
        settings = self._settings
        return_freed_memory()
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # The loop shares the interpreter with the ledger's thread: it must not wait for 5 ms.
        sys.setswitchinterval(SWITCH_S)
        for output in (sys.stdout, sys.stderr):
            _append(output)
        with self._open as stack:
            stack.callback(_detach_broken_outputs)
            self._garbage.start()
            stack.callback(self._garbage.stop)
            stack.enter_context(
                logging_to(sys.stderr, settings.server.log_level, settings.server.log_format)
            )
            self._lock_file(
                settings.db.data_dir / "serve.lock", f"data folder {settings.db.data_dir}"
            )
            try:
                check_restored(settings.db.data_dir)
            except ArchiveError as error:
                raise StartError(str(error)) from error
            listener = stack.enter_context(self._listener())
            self._port = listener.getsockname()[1]
            if settings.server.metrics_port:
                self._metrics_listener = stack.enter_context(
                    bound_listener(
                        settings.server.metrics_host, settings.server.metrics_port, "--metrics-port"
                    )
                )
            if self._addition is not None:
                try:
                    self._addition.check()
                except OSError as error:
                    raise StartError(str(error)) from error
            engine = self._connect()
            lease = self._lease(engine) if settings.control.role == "all" else None
            try:
                admin_key = prepare_database(settings.db, engine, lease)
            except (SecretKeyError, ValueError, OSError) as error:
                raise StartError(str(error)) from error
            if admin_key is not None:
                # At once: the start may fail or be stopped before the banner, and the key is stored.
                _print(f"admin key (shown once, keep it): {admin_key}", sys.stdout)
            if lease is not None:
                lease.start()
            try:
                platform = Platform(
                    settings,
                    engine=engine,
                    lease=lease,
                    on_ready=self._on_ready,
                    addition=self._addition,
                    connections_wait=self._socket_stays,
                )
            except ValueError as error:
                raise StartError(str(error)) from error
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(self._serve(platform, listener))

    async def _serve(self, platform: Platform, listener: socket.socket) -> int:
        """Serve on the listener."""
        settings = self._settings
        if (shared := platform.storage.shared) is not None:
            await _check_redis(settings.background.redis_url)
            await _check_past(settings.background.redis_url, platform.sessions, shared.keys)
        app = build_app(settings, platform)
        connections = _connections(settings)
        config = uvicorn.Config(
            app.middleware_stack,  # type: ignore[arg-type] # the access log, which names its app
            http=functools.partial(  # type: ignore[arg-type] # it is only called
                LimitedProtocol,
                connections=connections,
                limits=RequestLimits(max_body_bytes=settings.server.max_body_bytes),
            ),
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # client_address trusts trusted_proxies only, none by default
            timeout_graceful_shutdown=AFTER_DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        )
        reload = None
        if self._reread is not None:
            reload = Reloader(self._reread, platform, app).request
        server = _Server(config, platform, reload, connections if self._socket_stays else None)
        app.state.abort_connection = server.abort
        async with serving_metrics(metrics_app(app.state), self._metrics_listener):
            return await self._run(server, platform, listener)

    async def _run(self, server: _Server, platform: Platform, listener: socket.socket) -> int:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        collecting = asyncio.create_task(self._garbage.run(), name="garbage")
        failed: asyncio.Task[str] = asyncio.create_task(_first_failure(platform))
        try:
            await asyncio.wait({serving, failed}, return_when=asyncio.FIRST_COMPLETED)
            problem = failed.result() if failed.done() and not serving.done() else ""
            if problem:
                server.should_exit = True
                _print(f"fairserve: {problem}", sys.stderr)
            await serving
        finally:
            failed.cancel()
            collecting.cancel()
            await asyncio.gather(failed, collecting, return_exceptions=True)
        return 1 if problem or not server.started else 0

    # --- exclusive resources ----------------------------------------------------------------------

    def _listener(self) -> socket.socket:
        settings = self._settings
        passed = passed_listener()
        if passed is not None:
            self._socket_stays = True
            return passed
        shared = settings.control.role == "api"
        return bound_listener(settings.server.host, settings.server.port, "--port", shared=shared)

    def _lock_file(self, path: Path, what: str) -> None:
        try:
            self._open.enter_context(held_lock(path, what))
        except LockTakenError as error:
            raise StartError(str(error)) from error

    def _connect(self, **options: Any) -> Engine:
        try:
            engine = connect(self._settings.db.effective_database_url, **options)
        except (ValueError, OSError) as error:
            raise StartError(f"the database: {error}") from error
        self._open.callback(engine.dispose)
        return engine

    def _lease(self, engine: Engine) -> Lease:
        """Return the lease of the database, not acquired yet; it is closed with the process.

        Its guard is the lock that proves the end of the previous server: that of the SQLite file, else
        that of the data folder.
        """
        if engine.dialect.name == "sqlite":
            path = Path(str(engine.url.database))
            self._lock_file(path.with_name(path.name + ".lock"), f"database {path}")
            guard = "lock of the database file"
        else:
            guard = f"data folder {_folder_id(self._settings.db.data_dir)}"
        lease = Lease(
            self._connect(pool_size=1),
            lease_s=self._settings.db.database_lease_s,
            holder=f"{socket.gethostname()}, process {os.getpid()}",
            guard=guard,
        )
        self._open.callback(lease.close)
        return lease

    # --- the banner ------------------------------------------------------------------------------

    def _on_ready(self, platform: Platform) -> None:
        """Announce that the first call can be served. Called once."""
        # The objects of the start live as long as the process.
        self._garbage.collect_all()
        self._show_banner(platform)

    def _show_banner(self, platform: Platform) -> None:
        settings = self._settings
        host = "127.0.0.1" if settings.server.host in ("0.0.0.0", "") else settings.server.host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{self._port}"
        name = ", ".join(model.names[0] for model in platform.models.served())
        if name == BUILTIN_MODEL_NAME:
            name += "  (built-in, random weights: the text is noise; --model demo talks)"
        elif name == DEMO_MODEL_NAME:
            name += "  (built-in, answers follow a script; --model serves another)"
        lines = [
            f"FairServe is ready at {url}",
            f"  model   {name}",
            f"  workers {len(platform.pool.members())}, system {settings.tuning.system}",
            f"  data    {settings.db.data_dir}",
        ]
        if self._addition is not None:
            lines += self._addition.banner()
        if settings.console.console != "off":
            lines.append(f"  console {url}/console")
        lines.append(f"  docs    {url}/docs")
        _print("\n".join(lines), sys.stdout)


class _Server(uvicorn.Server):
    """A uvicorn server that drains control before it closes the port, and sets no exit code."""

    def __init__(
        self,
        config: uvicorn.Config,
        platform: Platform,
        reload: Callable[[], None] | None,
        ending: Connections | None,
    ) -> None:
        """``ending`` are the connections, if the next server accepts those that wait."""
        super().__init__(config)
        self._platform = platform
        self._reload = reload
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the platform, then listen. Raises what the start raises."""
        await self._platform.start()
        await super().startup(sockets)

    def abort(self, scope: Scope) -> None:
        """Drop the connection of a request in progress, with all data that its client has not read."""
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and cycle.scope is scope:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain with an open port, so that new requests are answered: 503 and when to retry.

        A socket that stays is left to the next server instead; requests on open connections are
        served first.
        """
        if self._ending is not None:
            for listening in self.servers:
                listening.close()
            self._ending.closing = True
            await asyncio.sleep(HANDOVER_S)
        in_progress = set(self.server_state.tasks)
        await self._platform.drain()
        if in_progress:
            # A call has ended in control before its last bytes have reached its client.
            await asyncio.wait(in_progress, timeout=self.config.timeout_graceful_shutdown)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle signals as uvicorn does, but raise none again: a requested stop is no failure."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        reload, loop = self._reload, asyncio.get_running_loop()
        if reload is not None:
            before[signal.SIGHUP] = signal.signal(
                signal.SIGHUP, lambda number, frame: loop.call_soon_threadsafe(reload)
            )
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # As safe as any crash: the journal has what the ledger lacks, and the workers end with us.
            os._exit(128 + number)
        if self._platform.waits:
            os._exit(0)  # there is nothing to end, and the wait may last
        # First: the rest may fail, and must not prevent the stop.
        self.should_exit = True
        _print("\nFairServe stops when the calls in progress have ended", sys.stdout)


async def _first_failure(platform: Platform) -> str:
    """Wait for the failure that ends this process: no worker became ready, or the lease is lost."""
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[str] = loop.create_future()

    def end(problem: str) -> None:
        if not ending.done():
            ending.set_result(problem)

    lease = platform.lease
    assert lease is not None, "a server process has one"
    shared = platform.storage.shared
    lease.call_when_lost(
        lambda: loop.call_soon_threadsafe(end, TAKEN_OVER if shared is None else shared.problem)
    )
    await platform.started.wait()
    workers = asyncio.create_task(_workers_failure(platform))
    workers.add_done_callback(lambda task: None if task.cancelled() else end(task.result()))
    try:
        return await ending
    finally:
        lease.call_when_lost(lambda: None)
        workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)


async def _workers_failure(platform: Platform) -> str:
    """Return why no worker became ready; waits without end if one does."""
    if platform.supervisor is None:
        await asyncio.Event().wait()
    assert platform.supervisor is not None
    try:
        await platform.supervisor.failed
    except WorkersFailedError as error:
        return str(error)
    return ""


async def _check_redis(url: str) -> None:
    """Report what is unsafe in the Redis of servers that share an order.

    Raises StartError if they cannot share it.
    """
    for finding in await redis_findings(url, shared=True):
        problem = f"{finding.check}: {finding.found}; {finding.help}"
        if finding.status == "fail":
            raise StartError(f"redis_url: {problem}")
        if finding.status == "warn":
            logger.warning("%s", problem)


async def _check_past(redis_url: str, sessions: SessionFactory, keys: str) -> None:
    """Raise StartError if the database or Redis was restored without the other."""
    from fairserve.platform.base.redis_client import LOST
    from fairserve.platform.server.noted_time import disagreement_at

    try:
        problem = await disagreement_at(redis_url, sessions, keys)
    except LOST as error:
        raise StartError(f"redis_url: no answer: {error}") from error
    if problem:
        raise StartError(problem)


def _folder_id(folder: Path) -> str:
    """Return an id of a data folder that a copy of the folder does not share."""
    path = folder / "server.id"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return f"{path.read_text().strip()}-{path.stat().st_ino}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop


def _connections(settings: Settings) -> Connections:
    """Return the counts of connections, within the limits of the settings and of this process."""
    descriptors = raise_descriptor_limit()
    total, per_address = (
        settings.server.max_connections,
        settings.server.max_connections_per_address,
    )
    possible = connections_within(descriptors)
    if possible < total:
        total, per_address = possible, min(per_address, max(1, possible // 2))
        logger.warning(
            "%d open files are allowed: %d client connections at a time, %d of one address; raise the"
            " hard limit (ulimit -Hn) for the %d of max_connections",
            descriptors,
            total,
            per_address,
            settings.server.max_connections,
        )
    return Connections(total, per_address, settings.console.proxy_networks)


def _print(text: str, stream: TextIO) -> None:
    """Print, unless the stream is closed: a log collector may have ended.

    The text and its end are one write: both streams may lead to one file, and without a buffer a log
    line could otherwise come between them, behind the admin key.
    """
    # RuntimeError: a signal handler may print in the middle of another print.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        stream.write(text + "\n")
        stream.flush()


def _append(stream: TextIO) -> None:
    """Write at the end of a stream's file: opened twice, it has two positions, which overwrite."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)


def _detach_broken_outputs() -> None:
    """Redirect broken outputs to the null device, or Python would exit with an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except ValueError:  # closed
            continue
