"""Cap on the weight ``w_aj`` of an app relative to the other apps of its tenant.

WSC divides a call's cost by the weight of its app's typical call, so by design an app with larger
calls receives more tokens. With ``weight_cap`` a weight counts at most that many times the median
weight, at the same stage, of the tenant's other apps in use; further use is charged as additional
typical calls. At 1 two apps of a tenant divide its tokens, not its calls.

Resistance to manipulation:

- A cap only raises the cost of calls, for their user and tenant. So no tenant gains from it over
  another tenant, whatever apps it registers.
- An app's own calls and profile do not affect its cap. The lower median of the other apps does:
  half of them would have to cooperate to raise the cap, or to lower that of a sibling.
- Apps in use are those with a call among the tenant's last 10,000 dispatched calls, so registering
  an app changes nothing.

An app that is alone in its tenant has no cap. Apps in use are counted per model. Cost: O(1) per
call; O(64 apps) at the first call of an app at a stage after a profile or the set of apps in use
changed. Weakness: beside a sibling with tiny calls an honest app with large ones has no larger
share of the tokens.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from fairserve.interactions.call import Call
from fairserve.interactions.profiles.profile import MAX_STAGES, AppProfile
from fairserve.scheduling.directory import Directory

MAX_APPS = 64
"""Maximum apps in use per tenant; the least recently used one is dropped."""
MAX_TENANTS = 10_000
"""Maximum tenants; the least recently used one is dropped."""
_MAX_MEDIANS = 1024
"""Maximum medians kept per tenant; when exceeded, they are computed again."""
_IN_USE_CALLS = 10_000
"""Number of a tenant's dispatched calls after which an app without one is no longer in use."""


class _Tenant:
    def __init__(self, calls: int = 0) -> None:
        self.calls = calls
        """Number of calls dispatched so far."""
        self.apps: OrderedDict[str, int] = OrderedDict()
        """Number of the last call of each app in use, oldest first."""
        self.medians: dict[tuple[str, int], float] = {}
        """Medians of the other apps' weights by app and stage, computed from ``profiles``."""
        self.profiles = -1

    def use(self, app: str) -> None:
        self.calls += 1
        if app not in self.apps:
            self.medians.clear()
        self.apps[app] = self.calls
        self.apps.move_to_end(app)
        while len(self.apps) > MAX_APPS or (
            next(iter(self.apps.values())) <= self.calls - _IN_USE_CALLS
        ):
            self.apps.popitem(last=False)
            self.medians.clear()


class WeightCap:
    """Maximum counted weight by app and stage. An infinite ``cap`` disables it."""

    def __init__(
        self, cap: float, directory: Directory, weight_of: Callable[[AppProfile, int], float]
    ) -> None:
        self._cap, self._directory, self._weight_of = cap, directory, weight_of
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def of_dispatched(self, call: Call) -> float:
        """Return the maximum counted weight of a call dispatched now; its app becomes in use."""
        if self._cap == math.inf:
            return math.inf
        tenant = self._tenants.get(call.tenant)
        if tenant is None:
            tenant = self._tenants[call.tenant] = _Tenant()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(call.tenant)
        tenant.use(call.app)
        if tenant.profiles != self._directory.profile_changes:
            tenant.profiles = self._directory.profile_changes
            tenant.medians.clear()
        key = (call.app, min(call.stage, MAX_STAGES + 1))  # later stages have the same weights
        median = tenant.medians.get(key)
        if median is None:
            if len(tenant.medians) >= _MAX_MEDIANS:
                tenant.medians.clear()
            median = tenant.medians[key] = self._median(tenant, *key)
        return self._cap * median

    def _median(self, tenant: _Tenant, app: str, stage: int) -> float:
        profile = self._directory.profile
        others = [self._weight_of(profile(each), stage) for each in tenant.apps if each != app]
        return statistics.median_low(others) if others else math.inf

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, by tenant."""
        return {
            name: [tenant.calls, list(tenant.apps.items())]
            for name, tenant in self._tenants.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._tenants.clear()
        for name, (calls, apps) in state.items():
            tenant = self._tenants[name] = _Tenant(calls)
            tenant.apps.update((app, number) for app, number in apps)
