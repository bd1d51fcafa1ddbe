"""The interface of an endpoint whose calls are carried by the relay: how it reads and how it writes.

All such endpoints share one path: the service (:mod:`fairserve.platform.serving.completions.service`)
lets an :class:`Endpoint` read the request, has the call checked, placed and carried, and lets the
endpoint's :class:`AnswerWriter` write the answer. OpenAI's completions are one endpoint each
(:mod:`fairserve.platform.serving.completions.openai_endpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fairserve.engine.wire.base import WorkerChunk, WorkerRejectedError
from fairserve.engine.wire.tasks import WorkerPath
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.request import CallRequest, RequestedTier
from fairserve.platform.tenancy.auth import Principal

CheckSize = Callable[[int, str], None]
"""Raises a FairServeError if a body of this size in bytes is too large for a model."""


class RelayedRequest(Protocol):
    """A parsed request of a call that the relay can carry."""

    @property
    def path(self) -> WorkerPath:
        """Path of the worker's endpoint."""
        ...

    @property
    def stream(self) -> bool:
        """True if the client gets the output as it arrives."""
        ...

    @property
    def include_usage(self) -> bool:
        """True if the client gets the usage at the end of a stream."""
        ...

    @property
    def continuous_usage(self) -> bool:
        """True if the client gets the usage with every chunk."""
        ...

    @property
    def service_tier(self) -> RequestedTier | None:
        """The tier that the client requests; None: it requests none."""
        ...

    def call_request(
        self,
        principal: Principal,
        *,
        endpoint: str = "",
        headers: Mapping[str, str] | None = None,
        raw: bytes = b"",
        background: bool = False,
    ) -> CallRequest:
        """Return the request for the decision service."""
        ...

    def worker_body(self, checked: CheckedCall) -> dict[str, Any]:
        """Return the request, of which the worker gets what it honours."""
        ...

    def merger(self) -> Merger:
        """Return an empty answer."""
        ...

    def rejected(
        self, error: WorkerRejectedError, worker_id: str, model: str
    ) -> WorkerRejectedError:
        """Return what the client gets of a worker's rejection; ``model`` is its name in answers."""
        ...


class AnswerWriter(Protocol):
    """Writes the answer of one call in the format of its endpoint, for one client."""

    keep_alive: bytes
    """A comment that is sent while a streaming client gets nothing else."""

    def begin(self) -> bytes:
        """Return the events before the first output; empty if there are none. Called once."""
        ...

    def event(self, chunk: WorkerChunk) -> bytes:
        """Return the events of a worker's chunk; empty if it has nothing for the client."""
        ...

    async def end(self, usage: dict[str, Any]) -> bytes:
        """Return the last events of a complete stream. ``usage`` is in OpenAI's shape.

        May wait, for instance to store the answer; the client sees no end before.
        """
        ...

    async def whole(self, merger: Merger, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a call that is not streamed. May wait, as :meth:`end`."""
        ...

    def error_event(self, error: FairServeError) -> bytes:
        """Return the last events of a stream that fails after its head was sent."""
        ...

    def error_body(self, error: FairServeError) -> dict[str, Any]:
        """Return the body of an answer that is an error."""
        ...


def unchanged(request: CallRequest) -> CallRequest:
    """Return the request itself."""
    return request


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request that an endpoint has read: the call that it makes, and the writer of its answer."""

    request: RelayedRequest
    writer: Callable[[CheckedCall], AnswerWriter]
    """Returns the writer of the call's answer, once the call is checked."""
    adapt: Callable[[CallRequest], CallRequest] = unchanged
    """Returns the request for the decision service with the endpoint's own fields."""


class Endpoint(Protocol):
    """One endpoint."""

    @property
    def path(self) -> str:
        """Its path. Equal bodies for different endpoints are different requests."""
        ...

    async def read(self, raw: bytes, principal: Principal, check_size: CheckSize) -> ReadRequest:
        """Parse and check a body. Raises a FairServeError that names the field that is wrong."""
        ...
