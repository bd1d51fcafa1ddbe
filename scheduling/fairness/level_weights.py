"""Weights of clients with levels: a weight divides the share of siblings, and nothing else.

A client's path has one to three levels (``LEVELS`` of :mod:`fairserve.interactions.call`). Tenant,
app and user each have a weight, which counts at their level. If a path has no level for the app,
the app's weight is multiplied with the user's; on a path of one level all three are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from fairserve.interactions.call import ClientPath, owner_path

Owner = tuple[str, str, str]
"""Tenant, app and user."""
Weights = tuple[float, float, float]
"""Weights of a tenant, an app and a user."""


def weights_by_level(weights: Weights, levels: int) -> tuple[float, ...]:
    """Return the weight at each of the levels of a path, outermost first."""
    tenant, app, user = weights
    if levels == 1:
        return (tenant * app * user,)
    if levels == 2:
        return (tenant, app * user)
    return (tenant, app, user)


@lru_cache(maxsize=4096)
def efforts_by_level(weights: Weights, levels: int) -> tuple[float, ...]:
    """Return E_i = 1 / weight at each of the levels of a path, outermost first."""
    return tuple(1.0 / each for each in weights_by_level(weights, levels))


def entitled_shares(
    weights: Mapping[Owner, Weights], levels: Callable[[str], str]
) -> dict[Owner, float]:
    """Return the share of all service to which each owner is entitled; the shares sum to 1.

    ``levels`` returns the levels of a tenant's clients, one of ``LEVELS``. At each level a node's
    part of its parent's share is its weight over the sum of its siblings' weights. Owners with the
    same path (a user's apps, if there is no level for apps) divide it by their weights. O(owners *
    levels).
    """
    leaves: dict[ClientPath, dict[Owner, float]] = {}
    nodes: dict[ClientPath, float] = {}
    for owner, each in weights.items():
        path = owner_path(*owner, levels(owner[0]))
        by_level = weights_by_level(each, len(path))
        leaves.setdefault(path, {})[owner] = by_level[-1]
        for depth, weight in enumerate(by_level):
            node = path[: depth + 1]
            nodes[node] = max(weight, nodes.get(node, 0.0))
    siblings: dict[ClientPath, float] = {}
    for node, weight in nodes.items():
        siblings[node[:-1]] = siblings.get(node[:-1], 0.0) + weight
    shares: dict[Owner, float] = {}
    for path, owners in leaves.items():
        share = 1.0
        for depth in range(len(path)):
            share *= nodes[path[: depth + 1]] / siblings[path[:depth]]
        whole = sum(owners.values())
        shares |= {owner: share * weight / whole for owner, weight in owners.items()}
    return shares
