"""Spans of the interactions that are open, bounded in all and by tenant."""

from __future__ import annotations

from collections import OrderedDict

from opentelemetry.trace import Span

MAX_RUNS = 10_000
MAX_RUNS_OF_TENANT = MAX_RUNS // 4


class OpenRuns:
    """Spans by run id, in the order of their beginning. O(1) per step."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tuple[str, Span]] = OrderedDict()
        self._of_tenant: dict[str, OrderedDict[str, None]] = {}

    def get(self, run_id: str) -> Span | None:
        """Return the span of an open run."""
        found = self._spans.get(run_id)
        return None if found is None else found[1]

    def add(self, tenant: str, run_id: str, span: Span) -> list[Span]:
        """Add a run; return the spans above the bounds, which are removed: the oldest ones."""
        own = self._of_tenant.setdefault(tenant, OrderedDict())
        own[run_id] = None
        self._spans[run_id] = (tenant, span)
        evicted = []
        if len(own) > MAX_RUNS_OF_TENANT:
            evicted.append(self.pop(tenant, next(iter(own))))
        if len(self._spans) > MAX_RUNS:
            oldest, (its_tenant, _) = next(iter(self._spans.items()))
            evicted.append(self.pop(its_tenant, oldest))
        return [each for each in evicted if each is not None]

    def pop(self, tenant: str, run_id: str) -> Span | None:
        """Remove and return the span of a run; None if it has none."""
        found = self._spans.pop(run_id, None)
        if found is None:
            return None
        own = self._of_tenant[tenant]
        del own[run_id]
        if not own:
            del self._of_tenant[tenant]
        return found[1]

    def clear(self) -> list[Span]:
        """Remove and return all spans."""
        spans = [span for _, span in self._spans.values()]
        self._spans.clear()
        self._of_tenant.clear()
        return spans
