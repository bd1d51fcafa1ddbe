"""Make the calls of lines, through the same decision service and relay as any client's.

Each endpoint of batches has one maker of calls. A further endpoint is one more entry in
:func:`line_calls`: batches know endpoints by their paths only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fairserve.engine.wire.base import WorkerClient
from fairserve.platform.serving.completions.endpoint import Endpoint
from fairserve.platform.serving.completions.openai_endpoint import (
    CHAT_COMPLETIONS,
    TEXT_COMPLETIONS,
)
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.embeddings.endpoint import EMBED, RANK
from fairserve.platform.tenancy.auth import Principal


class RelayedCalls:
    """Makes calls that the relay carries."""

    def __init__(
        self,
        endpoint: Endpoint,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
    ) -> None:
        self._endpoint, self._decisions, self._workers = endpoint, decisions, workers

    async def make(self, principal: Principal, body: bytes) -> dict[str, Any]:
        """Make a call. A line that names no run is a run of its own."""
        read = await self._endpoint.read(body, principal, self._decisions.check_size)
        checked = await self._decisions.check(
            read.request.call_request(
                principal, endpoint=self._endpoint.path, raw=body, background=True
            )
        )
        running = RunningCall(read.request, checked, None, time.monotonic())
        relay = Relay(running, self._decisions, self._workers.get)
        relay.why_left = "its batch was stopped"
        await relay.carry()
        assert running.merger is not None, "what is not streamed is merged"
        return await read.writer(checked).whole(running.merger, running.meter.shown(running.used))


def line_calls(
    decisions: DecisionService, workers: Mapping[str, WorkerClient]
) -> Mapping[str, RelayedCalls]:
    """Return the makers of calls by the path of their endpoint."""
    relayed: tuple[Endpoint, ...] = (CHAT_COMPLETIONS, TEXT_COMPLETIONS, EMBED, RANK)
    return {each.path: RelayedCalls(each, decisions, workers) for each in relayed}
