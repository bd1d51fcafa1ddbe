"""Envoy as the data plane of one server: its folder, its process, and the parts that serve it.

The parts start in this order: the decisions (gRPC), the server's HTTP side, Envoy. They stop in the
reverse order, so that Envoy never lacks what it asks.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import grpc

from fairserve.platform.envoy.access_log import END_DELAY_BOUNDS_S, AccessLogService, ends_in
from fairserve.platform.envoy.addresses import Address, Addresses
from fairserve.platform.envoy.behind_envoy import BehindEnvoy
from fairserve.platform.envoy.configuration import bootstrap
from fairserve.platform.envoy.decisions import AdapterParts, ExternalProcessor
from fairserve.platform.envoy.grpc_server import grpc_server, socket_target
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.open_calls import CallReport, OpenCalls
from fairserve.platform.envoy.process import EnvoyProcess
from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.tls import check_certificate, write_certificate
from fairserve.platform.envoy.workers_file import WorkersFile
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.supervisor import socket_folder
from fairserve.platform.monitoring.call_metrics import Histogram
from fairserve.platform.serving.bodies import BodyMemory

logger = logging.getLogger(__name__)

WORKERS_S = 0.1
"""Seconds between two looks for changed workers; calls to a worker that Envoy lacks take the relay."""
STREAMS_END_S = 2.0
"""Seconds that the streams of decisions have to end after Envoy has."""


class EnvoyPlane:
    """Envoy, its decisions, and its files. Belongs to one event loop from its start on."""

    def __init__(
        self,
        data_dir: Path,
        listen: Address,
        limits: Limits,
        settings: EnvoySettings,
        bodies: BodyMemory,
    ) -> None:
        """Raises OSError, and ValueError for a certificate that cannot be used."""
        check_certificate(settings)
        self._folder = data_dir.resolve() / "envoy"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sockets = socket_folder(data_dir, "envoy-sockets")
        self._limits, self._settings = limits, settings
        self.addresses = Addresses(
            listen=listen,
            api=Address.socket(self._sockets / "api"),
            decisions=Address.socket(self._sockets / "decisions"),
            admin=Address.socket(self._sockets / "admin"),
            workers_file=self._folder / "workers.json",
            ends_file=self._folder / "access.jsonl",
        )
        scheme: Literal["http", "https"] = "http" if settings.envoy_tls_cert is None else "https"
        self.behind = BehindEnvoy(bodies, OpenCalls(self._read_ends), scheme)
        """Parts for the application on :attr:`api_socket`."""
        self.end_delays = Histogram(END_DELAY_BOUNDS_S)
        """Delays in seconds with which ends of calls reach the server."""
        self.port: int | None = None
        """Public port; None before Envoy listens."""
        self.process: EnvoyProcess | None = None
        self._file = WorkersFile(self.addresses.workers_file, self.addresses.api)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None

    @property
    def api_socket(self) -> str:
        """Return the path of the Unix socket on which the application listens."""
        return self.addresses.api.path

    def left_ends(self) -> Mapping[str, CallReport]:
        """Return the ends of calls that the file of the last process has. Blocks."""
        try:
            return ends_in(self.addresses.ends_file)
        except OSError as error:
            logger.warning("the log %s cannot be read: %s", self.addresses.ends_file, error)
            return {}

    async def start_decisions(self, parts: AdapterParts, pool: WorkerPool) -> None:
        """Answer Envoy's questions, and write the files that it reads. Raises OSError."""
        self._file.write(pool.direct_addresses())
        write_certificate(self.addresses.certificate_file, self._settings)
        service = AccessLogService(self.behind.calls, self.end_delays.observe)
        target = socket_target(Path(self.addresses.decisions.path))
        self._server = grpc_server(
            target, ExternalProcessor(parts), service, self._limits.max_body_bytes
        )
        await self._server.start()
        self._tasks.append(asyncio.create_task(self._follow(pool), name="workers of envoy"))

    async def start_envoy(self) -> None:
        """Start Envoy, and wait until it listens. Raises EnvoyError."""
        self.process = EnvoyProcess(
            bootstrap(self.addresses, self._limits, self._settings),
            self._folder,
            concurrency=self._settings.envoy_concurrency,
            log_level=self._settings.envoy_log_level,
            ends_file=self.addresses.ends_file,
            max_log_bytes=self._settings.envoy_log_bytes,
        )
        await self.process.start()
        self.port = self.process.port

    async def stop_envoy(self, drain_s: float) -> None:
        """End Envoy after its connections have ended, for which it has ``drain_s``."""
        if self.process is not None:
            await self.process.drain(drain_s)
            await self.process.stop()

    async def stop(self) -> None:
        """Stop what is left."""
        if self.process is not None:
            await self.process.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.behind.calls.close()
        if self._server is not None:
            await self._server.stop(STREAMS_END_S)
        await asyncio.to_thread(shutil.rmtree, self._sockets, ignore_errors=True)

    async def _follow(self, pool: WorkerPool) -> None:
        """Keep the file of workers up to date."""
        while True:
            await asyncio.sleep(WORKERS_S)
            try:
                self._file.write(pool.direct_addresses())
            except (OSError, ValueError) as error:
                logger.warning("the workers of Envoy cannot be written: %s", error)

    def _read_ends(self, wanted: Collection[str]) -> Mapping[str, CallReport]:
        return ends_in(self.addresses.ends_file, wanted)
