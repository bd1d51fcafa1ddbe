"""A call under way, as the event loop sees it: the events of its samples, and their sums."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairserve.engine.torch.events import Admitted, EngineEvent, Failed, Generated
from fairserve.engine.torch.openai_response import SampleOutput


class LiveCall:
    """Used from the event loop only. ``release`` is called once, with the samples that still run.

    ``outputs`` grows as the events are applied, not as they arrive.
    """

    def __init__(
        self, sequence_ids: list[str], release: Callable[[LiveCall, list[str]], None]
    ) -> None:
        self.sequence_ids = sequence_ids
        self.outputs = [SampleOutput() for _ in sequence_ids]
        self.error: str | None = None
        """Set when a sample failed; the call is over then."""
        self.handed_back = False
        """The error is none of the call: another worker may take it."""
        self.rejected = False
        """The error is the request's: no worker can answer it."""
        self.has_started = False
        """Whether a sample has entered the batch."""
        self._index = {sequence_id: at for at, sequence_id in enumerate(sequence_ids)}
        self._running = set(sequence_ids)
        self._events: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self._release = release
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether every sample's last event has been applied, or a sample failed."""
        return self.error is not None or all(output.finish_reason for output in self.outputs)

    def put(self, event: EngineEvent) -> None:
        """An event arrived."""
        ended = isinstance(event, Failed) or (
            isinstance(event, Generated) and event.finish_reason is not None
        )
        if ended:
            self._running.discard(event.sequence_id)
        self.has_started |= isinstance(event, Admitted)
        self._events.put_nowait(event)

    async def arrivals(self) -> list[EngineEvent]:
        """Wait for events; all that are there, in order. Each has to be applied."""
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    def apply(self, event: EngineEvent) -> int:
        """Add an event to the sums; returns the sample that it belongs to."""
        index = self._index[event.sequence_id]
        output = self.outputs[index]
        if isinstance(event, Failed):
            self.error, self.handed_back = event.message, event.handed_back
            self.rejected = event.rejected
        elif isinstance(event, Admitted):
            output.cached_tokens = event.cached_tokens
        else:
            output.parts.append(event.text)
            output.tokens += event.tokens
            if event.logprobs is not None:
                output.logprobs.append(event.logprobs)
            output.finish_reason = event.finish_reason
        return index

    def close(self) -> None:
        """Nobody listens any more: what still runs is cancelled. May be called again."""
        if not self._closed:
            self._closed = True
            self._release(self, sorted(self._running))
