"""Columns of the VTC paper's figures on generated workloads (``paper.toml``)."""

from __future__ import annotations

from collections.abc import Callable

from fairserve.benchmarks.reproduce.report import ReportColumn
from fairserve.benchmarks.reproduce.vtc.service_history import ServiceHistory
from fairserve.benchmarks.traces.generate.vtc_suites import VTC_SUITES

Minutes = list[tuple[float, float]]
"""Start and end of each period in seconds."""


_CALL_SERVICE = 256 + 2 * 256
"""Service of the usual request of these workloads."""


def _minutes(history: ServiceHistory, begin_s: float, skip_s: float = 0.0) -> Minutes:
    """Return every second minute from ``begin_s`` on, each without its first seconds."""
    number = int((history.end_s - begin_s + 60.0) / 120.0)
    starts = [begin_s + 120.0 * each for each in range(number)]
    return [(start + skip_s, start + 60.0) for start in starts]


def _on(history: ServiceHistory) -> Minutes:
    """Return the on minutes without the first, in which the server fills."""
    return _minutes(history, 120.0)


def _off(history: ServiceHistory) -> Minutes:
    """Return the minutes in which the on/off client sends nothing."""
    return _minutes(history, 60.0)


def _mean(history: ServiceHistory, parts: Minutes, client: str = "") -> float:
    """Return service per second over these equally long parts, of a client or of all."""
    of_each = [
        history.served_per_s(client, *part) if client else history.total_per_s(*part)
        for part in parts
    ]
    return sum(of_each) / len(of_each)


def _off_share(history: ServiceHistory) -> float:
    """Return client 2's share of the second half of the off minutes."""
    late = _minutes(history, 60.0, 30.0)
    return _mean(history, late, "client-2") / _mean(history, late)


def _settled(history: ServiceHistory, client: str) -> float:
    """Return service per second after the first minute."""
    return history.served_per_s(client, 60.0, history.end_s)


def _rise(history: ServiceHistory) -> float:
    """Return the increase of client 1's mean response from the first to the last third."""
    end_s = history.end_s
    late = history.mean_response_s("client-1", 2 * end_s / 3, end_s)
    return late - history.mean_response_s("client-1", 0.0, end_s / 3)


def _off_weights(history: ServiceHistory, weighted: bool) -> float:
    """Return by how many percent the service of a client over its weight is off the mean at most."""
    weights = VTC_SUITES["weighted"].weights
    received = [
        float(values[-1]) / (weights[client] if weighted else 1.0)
        for client, values in history.accumulated.items()
    ]
    return 100 * max(abs(each * len(received) / sum(received) - 1) for each in received)


def _of_client_1(client: int) -> Callable[[ServiceHistory], float]:
    return lambda h: float(h.accumulated[f"client-{client}"][-1] / h.accumulated["client-1"][-1])


_COLUMNS = (
    ReportColumn("largest difference", lambda h: h.largest_difference),
    ReportColumn("mean difference", lambda h: float(h.difference.mean())),
    ReportColumn("std of difference", lambda h: float(h.difference.std())),
    ReportColumn("while backlogged", lambda h: h.interval_difference),
    ReportColumn("growth /min", lambda h: h.growth_per_min),
    ReportColumn("tok/s", lambda h: h.tokens_per_s),
    # Figure 4: clients 1 and 2 send a quarter and half a request a second.
    ReportColumn(
        "client 1 served of asked", lambda h: _settled(h, "client-1") / _CALL_SERVICE / 0.25, 2
    ),
    ReportColumn(
        "client 2 served of asked", lambda h: _settled(h, "client-2") / _CALL_SERVICE / 0.5, 2
    ),
    ReportColumn(
        "client 3 share", lambda h: _settled(h, "client-3") / h.total_per_s(60.0, h.end_s), 2
    ),
    ReportColumn("total /s", lambda h: h.total_per_s(60.0, h.end_s)),
    ReportColumn("client-1 response s", lambda h: h.mean_response_s("client-1"), 1),
    ReportColumn("client-2 response s", lambda h: h.mean_response_s("client-2"), 1),
    # Figures 5 and 6: client 1 is on and off by turns, a minute each.
    ReportColumn("total /s while on", lambda h: _mean(h, _on(h))),
    ReportColumn("off over on", lambda h: _mean(h, _off(h)) / _mean(h, _on(h)), 3),
    ReportColumn("client 2 share while off", _off_share, 2),
    ReportColumn(
        "client 1 of client 2 while off",
        lambda h: _mean(h, _off(h), "client-1") / _mean(h, _off(h), "client-2"),
        2,
    ),
    # Figure 9: the rate of client 2 rises.
    ReportColumn("client 1 rise s", _rise, 2),
    ReportColumn("client 1 greatest s", lambda h: h.greatest_response_s("client-1"), 2),
    ReportColumn("client 2 greatest s", lambda h: h.greatest_response_s("client-2"), 2),
    # Figure 10: three phases of five minutes.
    ReportColumn(
        "off over on, phase 1",
        lambda h: h.total_per_s(180.0, 240.0) / h.total_per_s(120.0, 180.0),
        3,
    ),
    ReportColumn(
        "client 1 of client 2, phase 2",
        lambda h: (
            h.served_per_s("client-1", 300.0, 600.0) / h.served_per_s("client-2", 300.0, 600.0)
        ),
        2,
    ),
    ReportColumn(
        "client 1 served of asked, phase 3",
        lambda h: h.served_per_s("client-1", 720.0, 900.0) / (0.5 * _CALL_SERVICE),
        2,
    ),
    ReportColumn(
        "client 1 response s, phase 3", lambda h: h.mean_response_s("client-1", 720.0, 900.0), 1
    ),
    # Figure 16: weights 1:2:3:4.
    *(ReportColumn(f"client {n} of client 1", _of_client_1(n), 2) for n in (2, 3, 4)),
    ReportColumn("off equal %", lambda h: _off_weights(h, False), 1),
    ReportColumn("off 1:2:3:4 %", lambda h: _off_weights(h, True), 1),
)
COLUMNS = {column.name: column for column in _COLUMNS}
"""Columns by name; each reads a :class:`ServiceHistory`."""
