"""Reports of workers for control: one of the processes that share an order sends them."""

from __future__ import annotations

from typing import Protocol

from fairserve.platform.control.messages import WorkerView
from fairserve.scheduling.events import Event


class WorkerReports(Protocol):
    """The part of control that takes reports of workers."""

    def observe(self, event: Event) -> None:
        """Apply an event if this process reports the workers; from any thread, does not block."""
        ...

    async def worker(self, worker_id: str) -> WorkerView | None:
        """Return the state of a worker; None if control does not have it."""
        ...
