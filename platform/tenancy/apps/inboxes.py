"""The running parts of the server, as the management services use them, from any thread."""

from __future__ import annotations

from typing import Protocol

from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling.events import ContractChanged, Event


class ControlInbox(Protocol):
    """The part of control's port through which tenancy changes its settings."""

    def post(self, event: Event) -> None:
        """Hand an event to the dispatcher; does not wait for it."""
        ...

    def contract_changed(self, event: ContractChanged, *, reopened: bool) -> None:
        """Apply limits from now on; waits for it, and must not be called from the event loop.

        ``reopened``: a budget has other periods than before, and the ledger knows what it has spent.
        """
        ...

    def use_prices(self, prices: PriceBook) -> None:
        """Price the calls that are submitted from now on; does not wait for it."""
        ...


class ProgramInbox(Protocol):
    """The part of the declared programs that the management endpoints use."""

    def cancel_of(self, reason: str, *, app_id: str = "", tenant_id: str = "") -> None:
        """Cancel what runs of an app or a tenant; does not wait for it."""
        ...
