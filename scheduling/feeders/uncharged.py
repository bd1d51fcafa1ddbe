"""Base of the feeders that charge nothing and have no counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairserve.interactions.call import ClientPath, TokenUsage
from fairserve.scheduling.base import Feeder


class UnchargedFeeder:
    """The methods of a :class:`~fairserve.scheduling.base.Feeder` without counters, interactions and
    knowledge of caches.
    """

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Do nothing: this feeder charges nothing."""

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Do nothing: this feeder charges nothing."""

    def expect(self, call_id: str, output_tokens: int) -> None:
        """Do nothing: this feeder charges nothing."""

    def finish(self, call_id: str, usage: TokenUsage) -> None:
        """Do nothing: this feeder charges nothing."""

    def interaction_ended(self, interaction_id: str) -> None:
        """Do nothing: this feeder does not use interactions."""

    def share(self, others: Sequence[Feeder]) -> None:
        """Do nothing: this feeder charges nothing."""

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: tuple[float, ...]
    ) -> None:
        """Do nothing: this feeder charges nothing."""

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Do nothing: this feeder does not use interactions."""

    def counter(self, path: ClientPath) -> float | None:
        """Return None: this feeder charges nothing."""
        return None

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """Return None: this feeder charges nothing."""
        return None
