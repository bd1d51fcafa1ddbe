"""Counter of HTTP requests by route, for Prometheus.

A path that is no route counts as ``unmatched``, and an unknown method as ``other``: strangers choose
neither. The number of series is bounded by the routes and the statuses that the server answers.
"""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily, Metric

UNMATCHED, OTHER = "unmatched", "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """Requests since the start. Belongs to the event loop. O(1) per request."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()

    def count(self, method: str, route: str | None, status: int) -> None:
        """Count a request that ended; ``route`` is None for a path that is no route."""
        method = method if method in _METHODS else OTHER
        self._requests[method, route or UNMATCHED, str(status)] += 1

    def family(self) -> Metric:
        """Return the metric as it is now."""
        family = CounterMetricFamily(
            "fairserve_http_requests",
            "Requests that ended; status 0 was not answered.",
            labels=("method", "route", "status"),
        )
        for labels, value in self._requests.items():
            family.add_metric(labels, value)
        return family
