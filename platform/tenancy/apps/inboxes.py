"""Interfaces of the running server that the management services use, from any thread."""

from __future__ import annotations

from typing import Protocol

from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling.events import ContractChanged, Event


class ControlInbox(Protocol):
    """The part of control that receives changed settings."""

    def post(self, event: Event) -> None:
        """Queue an event for the dispatcher; does not block."""
        ...

    def contract_changed(self, event: ContractChanged, *, reopened: bool) -> None:
        """Apply limits, and wait until they are in force; must not be called on the event loop.

        ``reopened``: the periods of a budget changed, so control reads the spent amount from the ledger.
        """
        ...

    def use_prices(self, prices: PriceBook) -> None:
        """Use these prices for calls submitted from now on; does not block."""
        ...


class ProgramInbox(Protocol):
    """The part of the program service that the management endpoints use."""

    def cancel_of(
        self, reason: str, *, app_id: str = "", tenant_id: str = "", user: str = ""
    ) -> None:
        """Cancel the running programs of an app, a tenant, or a user of it; does not block."""
        ...
