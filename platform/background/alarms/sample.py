"""The clients with demand in the last seconds, as the rules see them."""

from __future__ import annotations

from collections.abc import Mapping

from fairserve.platform.background.alarms.rules import SeenClient
from fairserve.platform.monitoring.activity import PoolDemand
from fairserve.platform.monitoring.entitled import EntitledAmong, shares_by_demand


def seen_clients(
    demand: Mapping[str, PoolDemand], entitled_among: EntitledAmong
) -> list[SeenClient]:
    """Return the clients of each model whose calls wait, with their shares of it. From any thread."""
    found: list[SeenClient] = []
    for model, (services, queued) in demand.items():
        if queued:
            received, entitled = shares_by_demand(services, queued, entitled_among)
            found += [
                SeenClient(owner, model, received[owner], entitled[owner], queued.get(owner, 0))
                for owner in services
            ]
    return found
