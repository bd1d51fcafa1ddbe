"""Trust in declared profiles: how much of a tenant's service is weighed by declarations alone.

A call whose stage no call has shown yet weighs what its app's owner declared. If the declaration is
too large, the call is charged less than one typical call, and the tenant gains the rest. So these gains
are summed by tenant, over all its apps and models: a call takes one typical call of trust when it is
dispatched, and returns what it is charged at its end. True declarations return as much as they take, in
the mean. Each typical call that the tenant is charged returns ``REGAINED`` more. So a tenant gains at
most ``most`` typical calls and that part of its service, whatever its apps declare and however many it
registers; profiles are learned beside that, at any interval.

Beyond its trust a declared call weighs at most its own size, as far as it is known at its dispatch: its
prompt, and the mean output of the tenant's last calls (at first that of the default profile).

Cost: O(1) per call. Weakness: trust is whole again after a restart. A tenant whose calls have small and
large outputs may mix new apps in, whose outputs are overestimated by the mean.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from fairserve.interactions.profiles.profile import DEFAULT_PROFILE

REGAINED = 0.02
"""Trust that a tenant regains for each typical call that it is charged for, in typical calls."""
MAX_TENANTS = 10_000
"""Tenants that are kept, the last ones with a call."""
_MEAN_OF = 100
"""Number of calls over which the mean output is taken."""


class _Dispatched(NamedTuple):
    tenant: str
    typical: float
    """Weighted tokens of a typical call, as charged."""
    taken: bool
    """It has taken trust."""


class _Tenant:
    __slots__ = ("calls", "output_tokens", "taken")

    def __init__(self) -> None:
        self.taken = 0.0
        """Trust that is taken and was not returned, in typical calls."""
        self.calls = 0
        self.output_tokens = DEFAULT_PROFILE.stage(1).output_tokens
        """Mean output of the last calls."""


class DeclaredTrust:
    """Trust of all tenants, shared by the feeders of all models."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._dispatched: dict[str, _Dispatched] = {}

    def begin(self, call_id: str, tenant: str, typical: float, *, taken: bool = False) -> float:
        """Record the weighted tokens of a typical call by which a dispatched call is charged."""
        self.cancel(call_id)
        self._dispatched[call_id] = _Dispatched(tenant, typical, taken)
        return typical

    def begin_declared(
        self,
        call_id: str,
        tenant: str,
        typical: float,
        *,
        prompt: float,
        per_output: float,
        most: float,
    ) -> float:
        """Return the weighted tokens by which a call is charged whose profile no call has shown.

        ``typical`` is that of its profile, ``prompt`` the call's own weighted prompt, and
        ``per_output`` the weight of an output token.
        """
        self.cancel(call_id)
        found = self._tenant(tenant)
        own = max(1.0, prompt + per_output * found.output_tokens)
        taken = typical > own and found.taken + 1.0 <= most
        found.taken += taken
        return self.begin(call_id, tenant, typical if taken else min(typical, own), taken=taken)

    def end(self, call_id: str, tokens: float, output_tokens: int) -> None:
        """Return trust for the weighted tokens of an ended call; without any it was not served."""
        if not tokens:
            self.cancel(call_id)
        call = self._dispatched.pop(call_id, None)
        if call is None:
            return
        found = self._tenant(call.tenant)
        charged = tokens / call.typical
        returned = charged * (REGAINED + call.taken)
        found.taken = max(0.0, found.taken - returned)
        found.calls = min(found.calls + 1, _MEAN_OF)
        found.output_tokens += (output_tokens - found.output_tokens) / found.calls

    def cancel(self, call_id: str) -> None:
        """Return the trust of a call that was not served."""
        call = self._dispatched.pop(call_id, None)
        if call is not None and call.taken:
            found = self._tenant(call.tenant)
            found.taken = max(0.0, found.taken - 1.0)

    def _tenant(self, name: str) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = _Tenant()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(name)
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "tenants": [
                [name, each.taken, each.calls, each.output_tokens]
                for name, each in self._tenants.items()
            ],
            "dispatched": [[call_id, *each] for call_id, each in self._dispatched.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._tenants.clear()
        for name, taken, calls, output_tokens in state["tenants"]:
            found = self._tenants[name] = _Tenant()
            found.taken, found.calls, found.output_tokens = taken, calls, output_tokens
        self._dispatched = {
            call_id: _Dispatched(*values) for call_id, *values in state["dispatched"]
        }
