"""The alarms that are not resolved, in memory. No clock and no database.

A finding opens an alarm, or continues the one about the same. An alarm that is not found is over, and
resolved after ``CLEAR_S`` of that, so that a condition that comes and goes is one alarm. At most
``MAX_OPEN`` alarms about tenants are kept, at most ``MAX_OF_TENANT`` of one, and fewer while others have
many; further findings wait until others are resolved. An alarm about the server always has a place:
their number is bounded by those of workers, models and jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fairserve.platform.background.alarms.alarm import Alarm, AlarmFinding, AlarmKey
from fairserve.platform.base.shared_limit import SharedLimit

CLEAR_S = 60.0
"""Seconds without the condition after which an alarm is resolved."""
MAX_OPEN = 200
MAX_OF_TENANT = 20
MAX_AFFECTED = 200
"""Apps that are named as affected by one alarm."""


class OpenAlarms:
    """The alarms by what they are about."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._alarms: dict[AlarmKey, Alarm] = {}

    def __iter__(self) -> Iterator[Alarm]:
        """Yield the alarms: bad ones first, then the latest opened first."""
        order = sorted(self._alarms.values(), key=lambda each: -each.opened_at)
        yield from sorted(order, key=lambda each: each.severity != "bad")

    def __len__(self) -> int:
        """Return their number."""
        return len(self._alarms)

    def by_key(self) -> dict[AlarmKey, Alarm]:
        """Return them by what they are about."""
        return dict(self._alarms)

    def replace(self, alarms: Iterable[Alarm]) -> None:
        """Continue these alarms instead of the present ones."""
        self._alarms = {alarm.key: alarm for alarm in alarms}

    def update(self, findings: Sequence[AlarmFinding], at: float) -> list[Alarm]:
        """Apply all that is found at a time; return the alarms that are resolved by it."""
        found = {finding.key for finding in findings}
        for alarm in self._alarms.values():
            if alarm.key in found:
                alarm.seen_at = at
            elif not alarm.over:
                alarm.facts, alarm.unsaved = {**alarm.facts, "ended": True}, True
        resolved = [each for each in self._alarms.values() if at - each.seen_at >= CLEAR_S]
        for alarm in resolved:
            alarm.resolved_at, alarm.unsaved = at, True
            del self._alarms[alarm.key]
        places = SharedLimit(MAX_OPEN, MAX_OF_TENANT / MAX_OPEN)
        for key in self._alarms:
            if key.tenant:
                places.add(key.tenant)
        for finding in findings:
            key = finding.key
            if key not in self._alarms:
                if key.tenant and places.take(key.tenant) is not None:
                    continue
                new = Alarm(self._new_id(), key, finding.severity, opened_at=at, seen_at=at)
                self._alarms[key] = new
            _refresh(self._alarms[key], finding)
        return resolved


def _refresh(alarm: Alarm, finding: AlarmFinding) -> None:
    """Take over what is found now."""
    affected = frozenset(sorted(alarm.affected | finding.affected)[:MAX_AFFECTED])
    facts = {name: fact for name, fact in finding.facts.items() if name != "ended"}
    now = (facts, finding.severity, affected)
    if (alarm.facts, alarm.severity, alarm.affected) != now:
        alarm.facts, alarm.severity, alarm.affected = now
        alarm.unsaved = True
