"""A running call as seen by the event loop: the events of its samples, and their sums."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairserve.engine.torch.events import Admitted, EngineEvent, Failed, Generated
from fairserve.engine.torch.openai.response import SampleOutput


class EngineCall:
    """State of a call in the event loop. ``release`` is called once, with the running samples.

    ``outputs`` grows as events are applied, not as they arrive.
    """

    def __init__(
        self, sequence_ids: list[str], release: Callable[[EngineCall, list[str]], None]
    ) -> None:
        self.sequence_ids = sequence_ids
        self.outputs = [SampleOutput() for _ in sequence_ids]
        self.error: str | None = None
        """Error of a failed sample, which ends the call; None if no sample failed."""
        self.handed_back = False
        """True if the call did not cause the error: another worker may take it."""
        self.rejected = False
        """True if the request caused the error: no worker can answer it."""
        self.has_started = False
        """True once a sample has entered the batch."""
        self._index = {sequence_id: at for at, sequence_id in enumerate(sequence_ids)}
        self._running = set(sequence_ids)
        self._events: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self._release = release
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Return whether every sample's last event was applied, or a sample failed."""
        return self.error is not None or all(output.finish_reason for output in self.outputs)

    def put(self, event: EngineEvent) -> None:
        """Add an event that arrived."""
        ended = isinstance(event, Failed) or (
            isinstance(event, Generated) and event.finish_reason is not None
        )
        if ended:
            self._running.discard(event.sequence_id)
        self.has_started |= isinstance(event, Admitted)
        self._events.put_nowait(event)

    async def arrivals(self) -> list[EngineEvent]:
        """Wait for events and return all in order. The caller must apply each."""
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    def apply(self, event: EngineEvent) -> int:
        """Add an event to the sums; return the index of its sample."""
        index = self._index[event.sequence_id]
        output = self.outputs[index]
        if isinstance(event, Failed):
            self.error, self.handed_back = event.message, event.handed_back
            self.rejected = event.rejected
        elif isinstance(event, Admitted):
            output.cached_tokens = event.cached_tokens
        else:
            output.parts.append(event.text)
            output.characters += len(event.text)
            output.tokens += event.tokens
            if event.logprobs is not None:
                output.logprobs.append(event.logprobs)
            output.finish_reason = event.finish_reason
            output.stop_reason = event.stop_reason
        return index

    def close(self) -> None:
        """End the call; samples that still run are cancelled. May be called again."""
        if not self._closed:
            self._closed = True
            self._release(self, sorted(self._running))
