"""What belongs to the server's process: the locks of its data, its socket, its signals, its banner.

One control writes one database: a second server is refused before it touches anything. The first
SIGINT or SIGTERM stops taking calls and waits for those under way; a second one leaves at once, and
the next start closes what was open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType

import uvicorn
from sqlalchemy import Engine, text

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.platform.db.engine import connect
from fairserve.platform.db.secret_key import SecretKeyError
from fairserve.platform.settings import Settings
from fairserve.platform.supervisor import WorkersFailedError
from fairserve.platform.wiring import Platform, build_app, prepare_database

logger = logging.getLogger(__name__)

SERVER_LOCK_ID = 0x66616973
"""Of PostgreSQL's advisory lock; another number than the migrations'."""
AFTER_DRAIN_S = 5
SWITCH_S = 0.0005


class StartError(Exception):
    """The server cannot start here. The message says why, and what to do."""


class ServerProcess:
    """One run of ``fairserve serve``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = contextlib.ExitStack()
        """Closes the locks, the socket and the database, also if the server cannot start."""
        self._admin_key: str | None = None
        self._port = 0

    def run(self) -> int:
        """Lock, bind, serve. Raises StartError, SchemaError or SQLAlchemyError before it serves."""
        settings = self._settings
        logging.basicConfig(
            level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # The loop shares the interpreter with the ledger's thread: it must not wait for 5 ms.
        sys.setswitchinterval(SWITCH_S)
        with self._open as stack:
            self._lock_file(settings.data_dir / "serve.lock", f"data folder {settings.data_dir}")
            listener = stack.enter_context(self._bind())
            self._port = listener.getsockname()[1]
            engine = _connected(settings)
            stack.callback(engine.dispose)
            self._lock_database(engine)
            try:
                self._admin_key = prepare_database(settings, engine)
            except (SecretKeyError, ValueError, OSError) as error:
                raise StartError(str(error)) from error
            platform = Platform(settings, engine=engine, on_ready=self._show_banner)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(self._serve(platform, listener))

    async def _serve(self, platform: Platform, listener: socket.socket) -> int:
        settings = self._settings
        config = uvicorn.Config(
            build_app(settings, platform),
            http="httptools",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.drain_timeout_s) + AFTER_DRAIN_S,
            timeout_keep_alive=75,
        )
        server = _Server(config, platform)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        failed: asyncio.Task[str] = asyncio.create_task(_first_failure(platform))
        try:
            await asyncio.wait({serving, failed}, return_when=asyncio.FIRST_COMPLETED)
            problem = failed.result() if failed.done() and not serving.done() else ""
            if problem:
                print(f"fairserve: {problem}", file=sys.stderr)
                server.should_exit = True
            await serving
        finally:
            failed.cancel()
            await asyncio.gather(failed, return_exceptions=True)
        return 1 if problem or not server.started else 0

    # --- what may be used once ----------------------------------------------------------------------

    def _lock_file(self, path: Path, what: str) -> None:
        try:
            file = path.open("a+")
        except OSError as error:
            raise StartError(f"{path} cannot be written: {error.strerror}") from error
        self._open.enter_context(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            pid = file.read().strip()
            who = f"process {pid}" if pid else "another process"
            raise StartError(
                f"the {what} is in use by another FairServe server ({who});"
                " stop it, or choose another one"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()

    def _lock_database(self, engine: Engine) -> None:
        if engine.dialect.name == "sqlite":
            path = Path(str(engine.url.database))
            self._lock_file(path.with_name(path.name + ".lock"), f"database {path}")
            return
        connection = self._open.enter_context(engine.connect())
        connection.execution_options(isolation_level="AUTOCOMMIT")
        query = text("SELECT pg_try_advisory_lock(:id)")
        if not connection.execute(query, {"id": SERVER_LOCK_ID}).scalar_one():
            raise StartError("the database is in use by another FairServe server")

    def _bind(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"port {port} is in use; choose another one with --port (0 takes a free one)"
                ) from error
            raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from error

    # --- what people see ------------------------------------------------------------------------------

    def _show_banner(self, platform: Platform) -> None:
        """Once, when the first call could be served."""
        settings = self._settings
        host = "127.0.0.1" if settings.host in ("0.0.0.0", "") else settings.host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        name = ", ".join(model.names[0] for model in platform.models.served())
        if name == BUILTIN_MODEL_NAME:
            name += "  (built-in, random weights: the text is noise, the serving is real)"
        lines = [
            f"FairServe is ready at http://{host}:{self._port}",
            f"  model   {name}",
            f"  workers {len(platform.pool.members())}, system {settings.system}",
            f"  data    {settings.data_dir}",
        ]
        if settings.console:
            lines.append(f"  console http://{host}:{self._port}/console")
        if settings.api_docs:
            lines.append(f"  docs    http://{host}:{self._port}/docs")
        if self._admin_key is not None:
            lines.append(f"  admin key (shown once, keep it): {self._admin_key}")
            self._admin_key = None
        print("\n".join(lines), flush=True)


class _Server(uvicorn.Server):
    """Drains control while it closes its connections, and leaves the exit code to us."""

    def __init__(self, config: uvicorn.Config, platform: Platform) -> None:
        super().__init__(config)
        self._platform = platform

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Both at once: calls under way end, and their connections after them."""
        draining = asyncio.create_task(self._platform.drain())
        await super().shutdown(sockets)
        await draining

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn does, but a stop that was asked for is no failure: nothing is raised again."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # As safe as any crash: the journal has what the ledger lacks, workers follow us.
            os._exit(128 + number)
        print("\nFairServe stops when the calls under way have ended", file=sys.stderr)
        self.should_exit = True


def _connected(settings: Settings) -> Engine:
    try:
        return connect(settings.effective_database_url)
    except (ValueError, OSError) as error:
        raise StartError(f"the database: {error}") from error


async def _first_failure(platform: Platform) -> str:
    """Why the workers never became ready; waits for ever if they do."""
    await platform.started.wait()
    if platform.supervisor is None:
        await asyncio.Event().wait()
    assert platform.supervisor is not None
    try:
        await platform.supervisor.failed
    except WorkersFailedError as error:
        return str(error)
    return ""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
