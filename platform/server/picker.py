"""The endpoint picker as a part of the server's process: gateways beside the API and the console."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from fairserve.platform.picker.certificate import read_certificate
from fairserve.platform.picker.clients import GatewayClients
from fairserve.platform.picker.endpoints import Endpoints
from fairserve.platform.picker.exchange import PickerParts
from fairserve.platform.picker.inference_pool import InferencePool
from fairserve.platform.picker.server import BackgroundTasks, PickerServer
from fairserve.platform.server.http.access_log import log_answered
from fairserve.platform.server.http.intake import body_memory
from fairserve.platform.server.settings import Settings
from fairserve.platform.tenancy.app_principal import AppPrincipal

if TYPE_CHECKING:
    from fairserve.platform.server.lifecycle import Platform


class Picker:
    """Serves gateways while a platform runs. Belongs to the event loop that starts it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: PickerServer | None = None
        self._pool: InferencePool | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port for gateways; 0 before the start."""
        return 0 if self._server is None else self._server.port

    def check(self) -> None:
        """Raise OSError if the port is in use, or the certificate cannot be read."""
        own = self._settings.picker
        if own.tls_folder is not None:
            read_certificate(own.tls_folder)
        host = self._settings.server.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, own.picker_port), family=family).close()
        except OSError as error:
            raise OSError(
                f"gateways cannot be served at {host}:{own.picker_port}:"
                f" {os.strerror(error.errno or 0)}; choose another port with --picker-port"
                " (0 takes a free one)"
            ) from error

    async def start(self, platform: Platform) -> None:
        """Follow the pool and listen. Raises OSError."""
        settings, own = self._settings, self._settings.picker
        app = AppPrincipal(platform.sessions, own.picker_app) if own.picker_app else None
        if own.pool_name:
            pool = self._pool = InferencePool(
                own, lambda part: platform.fleet.set_part("pool", part)
            )
            self._following = asyncio.create_task(pool.run(), name="inference pool")
        background = BackgroundTasks()
        parts = PickerParts(
            decisions=platform.decisions,
            clients=GatewayClients(
                platform.decisions,
                app,
                own.picker_background_objectives,
            ),
            pool=platform.pool,
            endpoints=Endpoints(platform.pool),
            bodies=body_memory(settings),
            max_body_bytes=settings.server.max_body_bytes,
            fallbacks=own.picker_fallbacks,
            draining=platform.draining.is_set,
            on_answered=log_answered,
            in_background=background.run,
        )
        self._server = PickerServer(
            settings.server.host, own, parts, lambda: self._ready(platform), background
        )
        await self._server.start()

    def _ready(self, platform: Platform) -> bool:
        """Return whether gateways may send calls: the members are known, and the database is ours."""
        if platform.draining.is_set() or not platform.started.is_set():
            return False
        if platform.lease is not None and platform.lease.over:
            return False
        if self._pool is not None:
            return self._pool.synced
        return platform.fleet_watch is None or not platform.fleet_watch.problem

    async def stop(self) -> None:
        """Stop listening once the exchanges have ended."""
        if self._server is not None:
            await self._server.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def banner(self) -> list[str]:
        """Return the lines of the banner."""
        own = self._settings.picker
        security = "plain text" if own.picker_tls == "off" else "TLS"
        lines = [f"  gateways {self._settings.server.host}:{self.port} (gRPC, {security})"]
        if self._pool is not None:
            lines.append(f"  pool     {self._pool.namespace}/{self._pool.name}")
        return lines
