"""Rows of the tenants on the Now page, worst first; for a tenant, rows of its apps.

The health of a row is that of the current alarms, so that the table and the cards always agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from fairserve.platform.background.alarms.schemas import AlarmOut
from fairserve.platform.base.money import NANO
from fairserve.platform.console.formats import part
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.flooding import ABOVE, PART
from fairserve.platform.monitoring.live_snapshot import Series
from fairserve.platform.monitoring.tenant_calls import CallGroup

ROWS = 10
"""Rows of a page, with which it is three screens long at most."""
POINTS = 40
"""Most points of a sparkline."""
RECENT_BUCKETS = 12
"""Buckets of the last minute."""
_WORDS = {
    "calls_rejected": "rejected",
    "calls_waiting": "waits",
    "calls_failing": "fails",
    "over_share": "over its share",
}


class Health(NamedTuple):
    """A badge of a row."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant, or an app of a tenant."""

    href: str
    name: str
    health: Sequence[Health]
    calls: CallGroup
    rejections: str
    """Address of its rejected calls."""
    service: float | None
    """Service per second in the last minute; None if it is not known."""
    spent: Decimal | None
    """Amount spent in this UTC day; None if it is not known."""
    line: str
    """Path of the sparkline of its service, 100 wide and 20 high."""

    @property
    def takes_more(self) -> bool:
        """Return whether it gets far more than it is entitled to."""
        share = self.calls.share
        if share is None:
            return False
        more = share.served - share.entitled
        return more >= PART and share.served >= ABOVE * share.entitled


def health_of(
    groups: Mapping[str, CallGroup], alarms: Sequence[AlarmOut], tenant: str | None
) -> dict[str, list[Health]]:
    """Return the badges of all groups, and of those that only alarms name; bad ones first."""
    found: dict[str, list[Health]] = {group: [] for group in groups}

    def add(group: str | None, health: Health) -> None:
        if group and health not in found.setdefault(group, []):
            found[group].append(health)

    for alarm in alarms:
        if alarm.over:
            continue
        own = alarm.tenant if tenant is None else alarm.app
        add(own, Health(_WORDS.get(alarm.kind, "affected"), alarm.severity))
        for each in alarm.affected:
            group = each.tenant if tenant is None else each.app
            if group != own:
                add(group, Health("affected", alarm.severity))
    for group, badges in found.items():
        if not badges:
            badges.append(_without_alarm(groups[group]))
    return found


def _without_alarm(calls: CallGroup) -> Health:
    """Return the badge of a group without an alarm; "fine" only if no call was rejected or failed."""
    if calls.rejected or calls.failed:
        return Health("no alarm", "")
    return Health("fine", "good") if calls.calls or calls.waiting else Health("quiet", "")


def worst_first(
    groups: Mapping[str, CallGroup], health: Mapping[str, Sequence[Health]]
) -> list[str]:
    """Return the groups: those with alarms, then by rejected share, wait and share of the service."""
    ranks = {"bad": 0, "warn": 1}
    nothing = CallGroup()

    def key(group: str) -> tuple[float, ...]:
        calls = groups.get(group, nothing)
        served = calls.share.served if calls.share else 0.0
        rank = min(ranks.get(each.tone, 2) for each in health[group])
        return rank, -calls.rejected_share, -(calls.wait_s or 0.0), -served

    return sorted(sorted(health), key=key)


def tenant_row(
    group: str,
    name: str,
    calls: CallGroup | None,
    health: Sequence[Health],
    service: Series,
    spent: Mapping[str, int] | None,
    tenant: str | None,
) -> TenantRow:
    """Return the row of a tenant, or of an app of ``tenant``.

    ``spent`` are the nanounits of this UTC day by group; None if they are not known.
    """
    kind, which = ("tenants", "tenant") if tenant is None else ("apps", "app")
    recent = [each for each in service[-RECENT_BUCKETS:] if each is not None]
    return TenantRow(
        href=f"/console/clients/{kind}/{part(group)}",
        name=name,
        health=health,
        calls=calls or CallGroup(),
        rejections=f"/console/refusals?{which}={part(group)}",
        service=sum(recent) / (len(recent) * BUCKET_S) if recent else None,
        spent=None if spent is None else Decimal(spent.get(group, 0)) / NANO,
        line=sparkline(service),
    )


def sparkline(values: Series) -> str:
    """Return the path of a line of at most ``POINTS`` sums, with a gap where a value is not known."""
    step = max(1, -(-len(values) // POINTS))
    parts = [values[at : at + step] for at in range(0, len(values), step)]
    sums = [None if None in each else max(0.0, sum(v or 0.0 for v in each)) for each in parts]
    high = max((each for each in sums if each is not None), default=0.0) or 1.0
    wide = 100 / max(1, len(sums) - 1)
    path, drawn = "", False
    for number, each in enumerate(sums):
        if each is not None:
            path += f"{'L' if drawn else 'M'}{number * wide:.1f},{19 - 18 * each / high:.1f}"
        drawn = each is not None
    return path


def scale_of(rows: Collection[TenantRow]) -> float:
    """Return the largest share of the rows, received or entitled, for bars of one scale."""
    shares = [row.calls.share for row in rows if row.calls.share is not None]
    return max((max(each.served, each.entitled) for each in shares), default=0.0) or 1.0
