"""What the management endpoints tell the running parts of the server, from any thread."""

from __future__ import annotations

from typing import Protocol

from fairserve.scheduling.events import ContractChanged, Event


class ControlInbox(Protocol):
    """What the management endpoints need of control."""

    def post(self, event: Event) -> None:
        """Hand an event to the dispatcher; does not wait for it."""
        ...

    def contract_changed(self, event: ContractChanged, *, reopened: bool) -> None:
        """Limits hold from now on; waits for it. ``reopened``: a budget has other periods than before,
        and the ledger knows what it has spent.
        """
        ...


class ProgramInbox(Protocol):
    """What the management endpoints need of declared programs."""

    def cancel_of(self, reason: str, *, app_id: str = "", tenant_id: str = "") -> None:
        """Cancel what runs of an app or a tenant; does not wait for it."""
        ...
