"""Health of the picker over gRPC, as the endpoint picker protocol asks.

``liveness`` is SERVING while the process responds. ``readiness`` and the external processor are SERVING
once the members of the pool are known, and not while the picker drains or has lost its database: a
gateway then uses another picker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from fairserve.platform.picker.protocol.services import EXTERNAL_PROCESSOR

SERVICE = "grpc.health.v1.Health"
LIVENESS, READINESS = "liveness", "readiness"
POLL_S = 1.0
"""Seconds between two looks at the state of a watched service."""

Response: Any = health_pb2.HealthCheckResponse


class PickerHealth:
    """The service. ``is_ready`` is asked for each check."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        read = health_pb2.HealthCheckRequest.FromString
        write = Response.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, read, write),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, read, write),
            },
        )

    async def check(self, request: Any, context: Any) -> Any:
        """Return the state of a service; NOT_FOUND for an unknown one."""
        status = self._status(request.service)
        if status is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"{request.service!r} is unknown; known: {LIVENESS}, {READINESS},"
                f" {EXTERNAL_PROCESSOR}",
            )
        return Response(status=status)

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Yield the state of a service now and whenever it changes."""
        before = None
        while True:
            status = self._status(request.service)
            if status is None:
                status = Response.SERVICE_UNKNOWN
            if status != before:
                before = status
                yield Response(status=status)
            await asyncio.sleep(POLL_S)

    def _status(self, service: str) -> int | None:
        if service in ("", LIVENESS):
            return int(Response.SERVING)
        if service in (READINESS, EXTERNAL_PROCESSOR):
            return int(Response.SERVING if self._is_ready() else Response.NOT_SERVING)
        return None
