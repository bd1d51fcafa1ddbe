"""Rules that assign users, tenants and arrivals to interactions, and that cut and merge traces.

Each rule takes a trace and returns a new one; random choices depend on the seed only. A rule
replaces existing values, so the order of rules matters: users before tenants (a user stays within
one tenant), arrivals before a window.

Weakness: rules ignore the content of interactions, so a user's runs are similar only if the trace's
are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError

ABUSIVE = "abusive"
WELL_BEHAVED = "well-behaved"


def assign_users(
    trace: Trace,
    *,
    users: int,
    skew: float = 0.0,
    abusive: int = 0,
    abusive_share: float = 0.0,
    seed: int = 0,
) -> Trace:
    """Assign each interaction one of ``user-1`` ... ``user-N``, drawn independently.

    User i has a share proportional to ``1 / i ** skew`` (0: equal shares). With ``abusive`` users,
    the first ones share ``abusive_share`` of all interactions equally and form the group
    ``abusive``; the others share the rest by their skew and are ``well-behaved``. Without, groups
    do not change. Raises `TraceError` for less than 1 user, a negative skew, no well-behaved user
    left, or an abusive share that is not between 0 and 1.
    """
    _require(users >= 1, "users", users, "1 or more")
    _require(0 <= skew < math.inf, "skew", skew, "a finite number of at least 0")
    _require(0 <= abusive < users, "abusive", abusive, f"0 to {users - 1}, fewer than users")
    if abusive:
        _require(0 < abusive_share < 1, "abusive_share", abusive_share, "between 0 and 1")
    else:
        _require(abusive_share == 0, "abusive_share", abusive_share, "0 without abusive users")
    weights = [(rank + 1) ** -skew for rank in range(users - abusive)]
    total = sum(weights)
    shares = [abusive_share / max(abusive, 1)] * abusive
    shares += [(1 - abusive_share) * weight / total for weight in weights]
    bounds = list(accumulate(shares))
    rng = _generator(seed)
    drawn = rng.choices(range(users), cum_weights=bounds, k=len(trace))
    interactions = []
    for interaction, index in zip(trace.interactions, drawn, strict=True):
        group = interaction.group
        if abusive:
            group = ABUSIVE if index < abusive else WELL_BEHAVED
        interactions.append(replace(interaction, user=f"user-{index + 1}", group=group))
    return trace.with_interactions(interactions)


def assign_tenants(trace: Trace, *, tenants: int, skew: float = 0.0, seed: int = 0) -> Trace:
    """Assign each user, with all interactions, one of ``tenant-1`` ... ``tenant-N``.

    Tenant i is drawn in proportion to ``1 / i ** skew``, for each user in the order of first
    arrival. Users with one name but two tenants are two users, each with a drawn tenant. Raises
    `TraceError` for less than 1 tenant or a negative skew.
    """
    _require(tenants >= 1, "tenants", tenants, "1 or more")
    _require(0 <= skew < math.inf, "skew", skew, "a finite number of at least 0")
    bounds = list(accumulate((rank + 1) ** -skew for rank in range(tenants)))
    rng = _generator(seed)
    tenant_by_user: dict[tuple[str, str], str] = {}
    interactions = []
    for interaction in trace.interactions:
        user = (interaction.tenant, interaction.user)
        if user not in tenant_by_user:
            index = rng.choices(range(tenants), cum_weights=bounds)[0]
            tenant_by_user[user] = f"tenant-{index + 1}"
        interactions.append(replace(interaction, tenant=tenant_by_user[user]))
    return trace.with_interactions(interactions)


def arrive_poisson(trace: Trace, *, rate_per_s: float, seed: int = 0) -> Trace:
    """Set arrivals to a Poisson process of ``rate_per_s`` from 0 on, in the given order.

    Raises `TraceError` unless the rate is above 0.
    """
    _require(0 < rate_per_s < math.inf, "rate_per_s", rate_per_s, "above 0 and finite")
    rng = _generator(seed)
    return _arriving(trace, accumulate(rng.expovariate(rate_per_s) for _ in range(len(trace))))


def arrive_evenly(trace: Trace, *, rate_per_s: float, seed: int = 0) -> Trace:
    """Set arrivals to every ``1 / rate_per_s`` seconds, the first one at 0, in the given order.

    Raises `TraceError` unless the rate is above 0.
    """
    _require(0 < rate_per_s < math.inf, "rate_per_s", rate_per_s, "above 0 and finite")
    return _arriving(trace, (index / rate_per_s for index in range(len(trace))))


def arrive_at_once(trace: Trace) -> Trace:
    """Set all arrivals to 0, in the given order."""
    return _arriving(trace, (0.0 for _ in range(len(trace))))


def scale_time(trace: Trace, factor: float) -> Trace:
    """Multiply arrivals by ``factor``: 0.5 doubles the load.

    Raises `TraceError` unless the factor is above 0.
    """
    _require(0 < factor < math.inf, "factor", factor, "above 0 and finite")
    return _arriving(trace, (run.arrival_s * factor for run in trace.interactions))


def limit(trace: Trace, interactions: int) -> Trace:
    """Keep the first ``interactions`` to arrive. Raises `TraceError` for less than 1."""
    _require(interactions >= 1, "interactions", interactions, "1 or more")
    return trace.with_interactions(trace.interactions[:interactions])


def window(trace: Trace, from_s: float = 0.0, to_s: float = math.inf) -> Trace:
    """Keep arrivals in ``[from_s, to_s)``; ``from_s`` becomes 0. The result may be empty.

    Raises `TraceError` unless ``0 <= from_s < to_s``.
    """
    _require(0 <= from_s < to_s, "from_s", from_s, f"from 0 to below to_s, {to_s:g}")
    return trace.with_interactions(
        [
            replace(interaction, arrival_s=interaction.arrival_s - from_s)
            for interaction in trace.interactions
            if from_s <= interaction.arrival_s < to_s
        ]
    )


def merge(traces: Sequence[Trace], *, name: str = "") -> Trace:
    """Merge traces by arrival; equal arrivals in the given order.

    The block size becomes the greatest common divisor of those of traces that have blocks: a block
    of k smaller ones and id b becomes the ids ``b * k`` to ``b * k + k - 1``. Ids are then shifted,
    so that no two traces share a prefix, and interaction ids are prefixed with the trace's name, or
    name and number if names repeat. Users and tenants do not change: the same name is the same
    user. Raises `TraceError` without traces.

    Weakness: a prefix shared within a coarse block was lost when the trace was recorded.
    """
    _require(len(traces) >= 1, "traces", len(traces), "1 or more")
    sizes = [trace.block_tokens for trace in traces if _end_of_ids(trace)]
    block_tokens = math.gcd(*sizes) if sizes else min(trace.block_tokens for trace in traces)
    names = [trace.name for trace in traces]
    interactions: list[Interaction] = []
    shift = 0
    for number, trace in enumerate(traces, start=1):
        prefix = trace.name if names.count(trace.name) == 1 else f"{trace.name}-{number}"
        # Without ids the size does not matter, and need not be a multiple.
        factor = max(trace.block_tokens // block_tokens, 1)
        interactions += [
            _rebased(interaction, prefix, factor, shift) for interaction in trace.interactions
        ]
        shift += _end_of_ids(trace) * factor
    return Trace(name or "+".join(names), block_tokens, ()).with_interactions(interactions)


def _rebased(interaction: Interaction, prefix: str, factor: int, shift: int) -> Interaction:
    calls: list[TraceCall] = []
    for call in interaction.calls:
        blocks = tuple((start * factor + shift, count * factor) for start, count in call.blocks)
        calls.append(replace(call, blocks=blocks))
    interaction_id = f"{prefix}/{interaction.interaction_id}"
    return replace(interaction, interaction_id=interaction_id, calls=tuple(calls))


def _end_of_ids(trace: Trace) -> int:
    """Return one more than the greatest block id; 0 if there are no blocks."""
    return max(
        (
            start + count
            for interaction in trace.interactions
            for call in interaction.calls
            for start, count in call.blocks
        ),
        default=0,
    )


def _generator(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a workload is no secret


def _arriving(trace: Trace, times_s: Iterable[float]) -> Trace:
    return trace.with_interactions(
        [
            replace(interaction, arrival_s=time_s)
            for interaction, time_s in zip(trace.interactions, times_s, strict=True)
        ]
    )


def _require(met: bool, name: str, value: float, allowed: str) -> None:
    if not met:
        raise TraceError(f"{name} {value}: {allowed} is allowed")
