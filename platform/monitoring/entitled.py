"""Entitled shares of clients by their demand: weighted max-min fairness (ALGORITHMS section 8).

A client whose calls do not wait demands what it received, and is entitled to that at most; what it
leaves is divided among the others by weights and levels. A client with queued calls demands more than it
got. So a client that takes much while nobody waits is entitled to it, however many quiet clients there
are; one that takes much while others wait is entitled to its share among those that want more.

Cost: O(rounds * clients), at most ``MAX_ROUNDS`` rounds. Weakness: clients that are still over their
share without waiting after these rounds are entitled to a little less than exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from fairserve.platform.control.messages import Client, Entitlements

MAX_ROUNDS = 8

EntitledAmong = Callable[[Collection[Client]], Entitlements]
"""Returns what each client is entitled to among these, if all demand more than they get."""


class DemandShares(NamedTuple):
    """Received and entitled shares of clients with demand, in the unit of the system in force."""

    received: Mapping[Client, float]
    """Share of each client in what all received; 0 for all if nothing was."""
    entitled: Mapping[Client, float]

    @property
    def any_served(self) -> bool:
        """Return whether any client was served."""
        return any(self.received.values())


def shares_by_demand(
    services: Mapping[Client, float], waiting: Collection[Client], entitled_among: EntitledAmong
) -> DemandShares:
    """Return the shares of the clients of ``services``; ``waiting`` are those with queued calls."""
    shares, typical = entitled_among(services)
    among = shares.among()
    counted = {owner: service / typical[owner[1]] for owner, service in services.items()}
    total = sum(counted.values())
    if total <= 0.0:
        return DemandShares(dict.fromkeys(services, 0.0), among)
    received = {owner: each / total for owner, each in counted.items()}
    entitled: dict[Client, float] = {}
    left, rest = 1.0, set(services)
    for _ in range(MAX_ROUNDS):
        if rest.isdisjoint(waiting):
            return DemandShares(
                received, {**entitled, **{owner: received[owner] for owner in rest}}
            )
        met = {
            owner
            for owner in rest
            if owner not in waiting and received[owner] <= left * among[owner]
        }
        if not met:
            break
        entitled |= {owner: received[owner] for owner in met}
        left = max(0.0, left - sum(received[owner] for owner in met))
        rest -= met
        among = shares.among(rest)
    return DemandShares(received, {**entitled, **{owner: left * among[owner] for owner in rest}})
