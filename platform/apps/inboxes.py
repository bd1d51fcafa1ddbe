"""What the management endpoints tell the running parts of the server, from any thread."""

from __future__ import annotations

from typing import Protocol

from fairserve.scheduling.events import Event


class ControlInbox(Protocol):
    """What the management endpoints need of control."""

    def post(self, event: Event) -> None:
        """Hand an event to the dispatcher; does not wait for it."""
        ...


class ProgramInbox(Protocol):
    """What the management endpoints need of declared programs."""

    def cancel_of(self, reason: str, *, app_id: str = "", tenant_id: str = "") -> None:
        """Cancel what runs of an app or a tenant; does not wait for it."""
        ...
