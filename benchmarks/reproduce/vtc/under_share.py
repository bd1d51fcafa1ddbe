"""Figures 4, 5, 9 and 10 of the VTC paper: clients under their share, all the time or for some of it.

They are served what they request without much delay, and the others use what they leave.
"""

from __future__ import annotations

from fairserve.benchmarks.reproduce.claims import at_least, at_most, between, less
from fairserve.benchmarks.reproduce.figure import PaperFigure, Rows
from fairserve.benchmarks.reproduce.report import Check, ReportColumn
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.vtc.synthetic import (
    FAIR,
    THROUGHPUT,
    Minutes,
    SyntheticFigure,
    mean_of,
    minutes,
    minutes_off,
    panels,
    runs_of,
)
from fairserve.benchmarks.reproduce.vtc.tables import OURS

_CALL_SERVICE = 256 + 2 * 256
"""Service of the usual request of these workloads."""
_BOTH_PANELS = panels("service", "fcfs", *FAIR) + panels("response", "fcfs", *FAIR)


def _response(client: str) -> ReportColumn:
    return ReportColumn(f"{client} response s", lambda h: h.mean_response_s(client), 1)


# --- Figure 4: three clients, two under their share ------------------------------------------------


def _settled(history: ServiceHistory, client: str) -> float:
    """Return service per second after the first minute."""
    return history.served_per_s(client, 60.0, history.end_s)


_SMALL, _MEDIUM = 0.25, 0.5
"""Requests per second of clients 1 and 2."""
_FIGURE_4 = (
    ReportColumn(
        "client 1 served of asked", lambda h: _settled(h, "client-1") / _CALL_SERVICE / _SMALL, 2
    ),
    ReportColumn(
        "client 2 served of asked", lambda h: _settled(h, "client-2") / _CALL_SERVICE / _MEDIUM, 2
    ),
    ReportColumn(
        "client 3 share",
        lambda h: _settled(h, "client-3") / h.total_per_s(60.0, h.end_s),
        2,
    ),
    ReportColumn("total /s", lambda h: h.total_per_s(60.0, h.end_s)),
    _response("client-1"),
    _response("client-2"),
)


def _figure_4(rows: Rows) -> list[Check]:
    small, medium, greedy, total, *responses = (column.name for column in _FIGURE_4)
    fcfs = rows["fcfs"]
    checks = []
    for name in FAIR:
        row = rows[name]
        for client, column in ((1, small), (2, medium)):
            claim = f"client {client}, under its share, is served what it asks, within 5 %"
            checks.append(between(claim, row, column, 0.95, 1.05))
        claim = "client 3 takes the rest, more than a third"
        checks.append(at_least(claim, row, greedy, 1 / 3, 2))
        claim = "work conserving: at least 98 % of the total service of FCFS"
        checks.append(at_least(claim, row, total, 0.98 * fcfs.measured[total].value))
        for client, column in enumerate(responses, start=1):
            claim = f"client {client} waits less than half as long as under FCFS"
            checks.append(less(claim, row, fcfs, column, 0.5, 1))
    return checks


# --- Figure 5: a client that comes and goes ---------------------------------------------------------


def _on(history: ServiceHistory) -> Minutes:
    """Return the on minutes without the first, in which the server fills."""
    return minutes(history, 120.0)


def _off_share(history: ServiceHistory) -> float:
    """Return client 2's share of the second half of the off minutes."""
    late = minutes(history, 60.0, 30.0)
    return mean_of(history, late, "client-2") / mean_of(history, late)


_FIGURE_5 = (
    ReportColumn("total /s while on", lambda h: mean_of(h, _on(h))),
    ReportColumn("off over on", lambda h: mean_of(h, minutes_off(h)) / mean_of(h, _on(h)), 3),
    ReportColumn("client 2 share while off", _off_share, 2),
    _response("client-1"),
    _response("client-2"),
)


def _figure_5(rows: Rows) -> list[Check]:
    _, conserved, rest, response, _ = (column.name for column in _FIGURE_5)
    checks = []
    for name in FAIR:
        row = rows[name]
        claim = (
            "work conserving: the total while client 1 is off is that while it is on, within 3 %"
        )
        checks.append(between(claim, row, conserved, 0.97, 1.03, 3))
        claim = "half a minute after client 1 went off, client 2 has at least 95 % of the service"
        checks.append(at_least(claim, row, rest, 0.95, 2))
        claim = "client 1, under its share, waits less than half as long as under FCFS"
        checks.append(less(claim, row, rows["fcfs"], response, 0.5, 1))
    return checks


# --- Figure 9: a client whose rate rises -----------------------------------------------------------


def _rise(history: ServiceHistory) -> float:
    """Return the increase of client 1's mean response from the first to the last third."""
    end_s = history.end_s
    late = history.mean_response_s("client-1", 2 * end_s / 3, end_s)
    return late - history.mean_response_s("client-1", 0.0, end_s / 3)


_FIGURE_9 = (
    ReportColumn("client 1 rise s", _rise, 2),
    ReportColumn("client 1 greatest s", lambda h: h.greatest_response_s("client-1"), 2),
    ReportColumn("client 2 greatest s", lambda h: h.greatest_response_s("client-2"), 2),
    THROUGHPUT,
)


def _figure_9(rows: Rows) -> list[Check]:
    rise, greatest, *_ = (column.name for column in _FIGURE_9)
    checks = []
    for name in FAIR:
        claim = "client 1's response time stays: the last third is at most 2 s over the first"
        checks.append(at_most(claim, rows[name], rise, 2.0, 2))
        claim = "in no window it is a tenth of the worst under FCFS"
        checks.append(less(claim, rows[name], rows["fcfs"], greatest, 0.1, 2))
    claim = "client 1's response time rises by 10 s or more"
    checks.append(at_least(claim, rows["fcfs"], rise, 10.0, 1))
    return checks


# --- Figure 10: the distribution shifts ------------------------------------------------------------

_FIGURE_10 = (
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
)


def _figure_10(rows: Rows) -> list[Check]:
    conserved, level, served, response = (column.name for column in _FIGURE_10)
    checks = []
    for name in FAIR:
        row = rows[name]
        claim = "phase 1: the total stays when client 1 goes off, within 3 %"
        checks.append(between(claim, row, conserved, 0.97, 1.03, 3))
        claim = "phase 2: both over their share get the same, within 7 %"
        checks.append(between(claim, row, level, 0.93, 1.07))
        claim = "phase 3: client 1, under its share, is served what it asks, within 5 %"
        checks.append(between(claim, row, served, 0.95, 1.05))
        claim = "phase 3: client 1 waits no longer than a quarter over LCF"
        checks.append(less(claim, row, rows["lcf"], response, 1.25, 1))
    claim = "phase 2: client 1 still has the credit of its absence, and gets 15 % more or above"
    checks.append(at_least(claim, rows["lcf"], level, 1.15, 2))
    return checks


UNDER_SHARE = (
    SyntheticFigure(
        PaperFigure(
            4, "three clients, two of them under their share", _FIGURE_4, _figure_4, _BOTH_PANELS
        ),
        runs_of("three-clients", "fcfs", *FAIR),
        to_end=True,
    ),
    SyntheticFigure(
        PaperFigure(5, "on and off, under its share", _FIGURE_5, _figure_5, _BOTH_PANELS),
        runs_of("on-off-below-share", "fcfs", *FAIR),
        to_end=True,
    ),
    SyntheticFigure(
        PaperFigure(
            9, "isolation from a client whose rate rises", _FIGURE_9, _figure_9, _BOTH_PANELS
        ),
        runs_of("increase", "fcfs", *FAIR),
        to_end=True,
        whole=True,
    ),
    SyntheticFigure(
        PaperFigure(
            10, "three phases", _FIGURE_10, _figure_10, panels("service", "vtc", "lcf", OURS)
        ),
        runs_of("shift", "lcf", *FAIR),
        to_end=True,
        whole=True,
    ),
)
