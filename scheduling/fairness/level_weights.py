"""Weights of clients with levels: a weight divides the share of siblings, and nothing else.

A client's path has one to three levels (``LEVELS`` of :mod:`fairserve.interactions.call`). Tenant,
app and user each have a weight, which counts at their level. If a path has no level for the app,
the app's weight is multiplied with the user's; on a path of one level all three are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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


class EntitledShares:
    """Shares of all service to which owners are entitled, all of them or some among each other.

    At each level a node's part of its parent's share is its weight over the sum of its siblings'
    weights. Owners with the same path (a user's apps, if there is no level for apps) divide it by
    their weights. O(owners * levels).
    """

    def __init__(self, weights: Mapping[Owner, Weights], levels: Callable[[str], str]) -> None:
        """``levels`` returns the levels of a tenant's clients, one of ``LEVELS``."""
        self._leaves: dict[Owner, tuple[ClientPath, float]] = {}
        """Path and weight of each owner."""
        self._inner: dict[ClientPath, float] = {}
        """Weights of the nodes above those paths."""
        for owner, each in weights.items():
            path = owner_path(*owner, levels(owner[0]))
            by_level = weights_by_level(each, len(path))
            self._leaves[owner] = path, by_level[-1]
            if path[:-1] not in self._inner:
                for depth in range(1, len(path)):
                    self._inner[path[:depth]] = by_level[depth - 1]

    def among(self, owners: Iterable[Owner] | None = None) -> dict[Owner, float]:
        """Return the share of each of these owners if there were no others, by default of all.

        The shares sum to 1.
        """
        heaviest: dict[ClientPath, float] = {}
        sums: dict[ClientPath, float] = {}
        among = self._leaves if owners is None else owners
        present = [(owner, *self._leaves[owner]) for owner in among]
        for _, path, weight in present:
            if path in sums:
                heaviest[path] = max(weight, heaviest[path])
                sums[path] += weight
            else:
                heaviest[path] = sums[path] = weight
        siblings = defaultdict[ClientPath, float](float)
        for path, weight in heaviest.items():
            siblings[path[:-1]] += weight
        inner = {
            parent[:depth]: self._inner[parent[:depth]]
            for parent in siblings
            for depth in range(1, len(parent) + 1)
        }
        for node, weight in inner.items():
            siblings[node[:-1]] += weight
        parts = {}
        for parent in siblings:
            part = 1.0 / siblings[parent]
            for depth in range(1, len(parent) + 1):
                part *= inner[parent[:depth]] / siblings[parent[: depth - 1]]
            parts[parent] = part
        return {
            owner: parts[path[:-1]] * heaviest[path] * weight / sums[path]
            for owner, path, weight in present
        }
