"""What Figures 3 to 10, 15, 16 and 19 of the VTC paper claim, on its synthetic workloads.

``U = max(wp * Linput, wq * M)`` is the paper's, with wp = 1, wq = 2 and M the tokens of the pool.
Service of clients that are backlogged all the time may differ by 2 U over any interval (Theorem 4.4).
Where the paper says "small", "immediately" or "the same", the limit is ours; each claim names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fairserve.engine.simulated.traces.generate.vtc_suites import VTC_SUITES
from fairserve.platform.reproduce.claims import at_least, at_most, between, less
from fairserve.platform.reproduce.figure import Figure, Panel, Rows
from fairserve.platform.reproduce.report import Check, Column
from fairserve.platform.reproduce.service_history import ServiceHistory

OURS = "fairserve"
FAIR = ("vtc", OURS)
CALL_SERVICE = 256 + 2 * 256
"""Of the usual request of these workloads."""


def bound(pool_tokens: int, input_tokens: int = 256) -> float:
    """2 U of Theorem 4.4."""
    return 2.0 * max(input_tokens, 2 * pool_tokens)


BOUND = bound(10_000)
"""Of the pool of all workloads but those of Figure 15."""

DIFFERENCE = Column("largest difference", lambda h: h.largest_difference)
INTERVAL = Column("over any interval", lambda h: h.interval_difference)
GROWTH = Column("growth /min", lambda h: h.growth_per_min)
THROUGHPUT = Column("tok/s", lambda h: h.tokens_per_s)


@dataclass(frozen=True, slots=True)
class Run:
    """A row of a figure."""

    name: str
    suite: str
    system: str
    weighted: bool = False
    """The clients have the weights of the workload."""


@dataclass(frozen=True, slots=True)
class SyntheticFigure:
    """A figure and its runs."""

    figure: Figure
    runs: tuple[Run, ...]
    to_end: bool = False
    """All calls are served, so that a response time is known of each; else the run stops with the
    arrivals."""
    whole: bool = False
    """Never shortened: what it shows comes late."""
    share: float = 1.0
    """Of the duration."""


def _runs(suite: str, *systems: str) -> tuple[Run, ...]:
    return tuple(Run(system, suite, system) for system in systems)


def _bounded(rows: Rows, limit: float = BOUND) -> list[Check]:
    """Bounded and level under VTC, neither under FCFS."""
    fcfs = rows["fcfs"]
    checks = []
    for name in FAIR:
        row = rows[name]
        claim = "over any interval the two clients' service differs by no more than 2U"
        checks.append(at_most(claim, row, INTERVAL.name, limit))
        claim = "the difference does not grow: by less than a tenth of what it does under FCFS"
        checks.append(less(claim, row, fcfs, GROWTH.name, 0.1))
    claim = "the client with more requests gets more, past 2U"
    checks.append(at_least(claim, fcfs, DIFFERENCE.name, limit))
    return checks


_BOUNDED = (DIFFERENCE, INTERVAL, GROWTH, THROUGHPUT)
_BOUNDED_PANELS = (
    Panel("difference", ("fcfs", *FAIR), BOUND),
    Panel("service", ("vtc",)),
    Panel("service", (OURS,)),
)
_BOTH_PANELS = tuple(
    Panel(kind, (name,)) for kind in ("service", "response") for name in ("fcfs", *FAIR)
)


def _two_clients(number: int, title: str, suite: str) -> SyntheticFigure:
    figure = Figure(number, title, _BOUNDED, _bounded, _BOUNDED_PANELS)
    return SyntheticFigure(figure, _runs(suite, "fcfs", *FAIR))


def _response(client: str) -> Column:
    return Column(f"{client} response s", lambda h: h.mean_response_s(client), 1)


# --- Figure 4: three clients, two under their share ------------------------------------------------


def _settled(history: ServiceHistory, client: str) -> float:
    """Service per second after the first minute."""
    return history.served_per_s(client, 60.0, float(history.times_s[-1]))


_SMALL, _MEDIUM = 0.25, 0.5
"""Requests per second of clients 1 and 2."""
_FIGURE_4 = (
    Column(
        "client 1 served of asked", lambda h: _settled(h, "client-1") / CALL_SERVICE / _SMALL, 2
    ),
    Column(
        "client 2 served of asked", lambda h: _settled(h, "client-2") / CALL_SERVICE / _MEDIUM, 2
    ),
    Column(
        "client 3 share",
        lambda h: _settled(h, "client-3") / h.total_per_s(60.0, float(h.times_s[-1])),
        2,
    ),
    Column("total /s", lambda h: h.total_per_s(60.0, float(h.times_s[-1]))),
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


# --- Figures 5 and 6: a client that comes and goes -------------------------------------------------


def _phases(
    history: ServiceHistory, begin_s: float, skip_s: float = 0.0
) -> list[tuple[float, float]]:
    """The minutes that begin there and every other one, less their first seconds."""
    end_s = float(history.times_s[-1])
    starts = [begin_s + 120.0 * number for number in range(int((end_s - begin_s) / 120.0) + 1)]
    return [(start + skip_s, start + 60.0) for start in starts if start + 60.0 <= end_s + 7.5]


def _mean_total(history: ServiceHistory, phases: list[tuple[float, float]]) -> float:
    return sum(history.total_per_s(*phase) for phase in phases) / len(phases)


def _mean_of(history: ServiceHistory, client: str, phases: list[tuple[float, float]]) -> float:
    return sum(history.served_per_s(client, *phase) for phase in phases) / len(phases)


def _off(history: ServiceHistory) -> list[tuple[float, float]]:
    return _phases(history, 60.0)


def _on(history: ServiceHistory) -> list[tuple[float, float]]:
    """Without the first minute, in which the server fills."""
    return _phases(history, 120.0)


def _off_share(history: ServiceHistory) -> float:
    """Client 2's share of the second half of the off minutes."""
    late = _phases(history, 60.0, 30.0)
    return _mean_of(history, "client-2", late) / _mean_total(history, late)


_FIGURE_5 = (
    Column("total /s while on", lambda h: _mean_total(h, _on(h))),
    Column("off over on", lambda h: _mean_total(h, _off(h)) / _mean_total(h, _on(h)), 3),
    Column("client 2 share while off", _off_share, 2),
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


_FIGURE_6 = (
    DIFFERENCE,
    INTERVAL,
    GROWTH,
    Column(
        "client 1 of client 2 while off",
        lambda h: _mean_of(h, "client-1", _off(h)) / _mean_of(h, "client-2", _off(h)),
        2,
    ),
)


def _figure_6(rows: Rows) -> list[Check]:
    claim = "client 1, still backlogged while off, gets what client 2 gets, within 15 %"
    return _bounded(rows) + [
        between(claim, rows[name], _FIGURE_6[-1].name, 0.85, 1.15) for name in FAIR
    ]


# --- Figure 9: a client whose rate rises -----------------------------------------------------------


def _rise(history: ServiceHistory) -> float:
    """Client 1's mean response in the last third less that in the first."""
    end_s = float(history.times_s[-1])
    late = history.mean_response_s("client-1", 2 * end_s / 3, end_s)
    return late - history.mean_response_s("client-1", 0.0, end_s / 3)


_FIGURE_9 = (
    Column("client 1 rise s", _rise, 2),
    Column("client 1 greatest s", lambda h: h.greatest_response_s("client-1"), 2),
    Column("client 2 greatest s", lambda h: h.greatest_response_s("client-2"), 2),
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
    Column(
        "off over on, phase 1",
        lambda h: h.total_per_s(180.0, 240.0) / h.total_per_s(120.0, 180.0),
        3,
    ),
    Column(
        "client 1 of client 2, phase 2",
        lambda h: (
            h.served_per_s("client-1", 300.0, 600.0) / h.served_per_s("client-2", 300.0, 600.0)
        ),
        2,
    ),
    Column(
        "client 1 served of asked, phase 3",
        lambda h: h.served_per_s("client-1", 700.0, 900.0) / (0.5 * CALL_SERVICE),
        2,
    ),
    Column(
        "client 1 response s, phase 3", lambda h: h.mean_response_s("client-1", 730.0, 900.0), 1
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


# --- Figure 15: pool size and request length -------------------------------------------------------

_SETTINGS = {
    "pool 35,000": "pool-35000",
    "pool 65,000": "pool-65000",
    "512+512 tokens": "length-512",
    "768+768 tokens": "length-768",
}
_FIGURE_15 = (
    DIFFERENCE,
    INTERVAL,
    Column("std of difference", lambda h: float(h.difference.std())),
    THROUGHPUT,
)


def _figure_15(rows: Rows) -> list[Check]:
    checks = []
    for setting, suite in _SETTINGS.items():
        pool = VTC_SUITES[suite].pool_tokens
        for name in FAIR:
            claim = "over any interval the clients' service differs by no more than 2U"
            checks.append(at_most(claim, rows[f"{name}, {setting}"], INTERVAL.name, bound(pool)))
    small, large, longer, longest = (rows[f"vtc, {setting}"] for setting in _SETTINGS)
    column = DIFFERENCE.name
    checks += [
        less("a larger pool lets it vary more (65,000)", small, large, column),
        less("longer requests let it vary more (512+512)", small, longer, column),
    ]
    ratio = longest.measured[column].value / longer.measured[column].value
    claim = "vtc: 768+768 varies as 512+512 does, within 30 %"
    checks.append(Check(claim, 0.7 <= ratio <= 1.3, f"{ratio:.2f} of it"))
    checks += [
        less("varies less than VTC", rows[f"{OURS}, {setting}"], rows[f"vtc, {setting}"], column)
        for setting in _SETTINGS
    ]
    return checks


# --- Figure 16: weights ----------------------------------------------------------------------------


def _entitled(history: ServiceHistory, weighted: bool) -> list[float]:
    """What each client received over its weight, relative to the mean."""
    weights = VTC_SUITES["weighted"].weights
    received = [
        float(values[-1]) / (weights[client] if weighted else 1.0)
        for client, values in history.accumulated.items()
    ]
    return [each * len(received) / sum(received) for each in received]


def _shares(client: int) -> Column:
    return Column(
        f"client {client} of client 1",
        lambda h: float(h.accumulated[f"client-{client}"][-1] / h.accumulated["client-1"][-1]),
        2,
    )


_FIGURE_16 = (
    _shares(2),
    _shares(3),
    _shares(4),
    Column("off equal %", lambda h: 100 * max(abs(x - 1) for x in _entitled(h, False)), 1),
    Column("off 1:2:3:4 %", lambda h: 100 * max(abs(x - 1) for x in _entitled(h, True)), 1),
)


def _figure_16(rows: Rows) -> list[Check]:
    equal, weighted = _FIGURE_16[-2].name, _FIGURE_16[-1].name
    return [
        *(
            at_most("all clients receive the same, within 5 %", rows[name], equal, 5.0, 1)
            for name in FAIR
        ),
        *(
            at_most("what clients receive is as 1:2:3:4, within 5 %", rows[name], weighted, 5.0, 1)
            for name in ("vtc-weighted", f"{OURS} 1:2:3:4")
        ),
    ]


# --- Figure 19: length prediction ------------------------------------------------------------------

_PREDICTING = ("vtc", "vtc-noisy", "vtc-oracle", OURS)
_BACKLOGGED = {"2 clients": "backlogged-2", "8 clients": "backlogged-8"}
_MEAN = Column("mean difference", lambda h: float(h.difference.mean()))
_FIGURE_19 = (DIFFERENCE, _MEAN, INTERVAL, THROUGHPUT)


def _figure_19(rows: Rows) -> list[Check]:
    checks = []
    for clients in _BACKLOGGED:
        plain, noisy, oracle, ours = (rows[f"{name}, {clients}"] for name in _PREDICTING)
        claim = "bounded without prediction: 2U over any interval"
        checks += [
            at_most(claim, plain, INTERVAL.name, BOUND),
            less("lower with a prediction that is off by up to 50 %", noisy, plain, _MEAN.name),
            less("lower still with the true length", oracle, noisy, _MEAN.name),
            less("lower than VTC without a prediction", ours, plain, _MEAN.name),
        ]
    return checks


FIGURES: Mapping[int, SyntheticFigure] = MappingProxyType(
    {
        each.figure.number: each
        for each in (
            _two_clients(3, "two overloaded clients", "overload"),
            SyntheticFigure(
                Figure(
                    4,
                    "three clients, two of them under their share",
                    _FIGURE_4,
                    _figure_4,
                    _BOTH_PANELS,
                ),
                _runs("three-clients", "fcfs", *FAIR),
                to_end=True,
            ),
            SyntheticFigure(
                Figure(
                    5,
                    "on and off, under its share",
                    _FIGURE_5,
                    _figure_5,
                    _BOTH_PANELS,
                ),
                _runs("on-off-below-share", "fcfs", *FAIR),
                to_end=True,
            ),
            SyntheticFigure(
                Figure(6, "on and off, over its share", _FIGURE_6, _figure_6, _BOUNDED_PANELS),
                _runs("on-off-above-share", "fcfs", *FAIR),
                to_end=True,
            ),
            _two_clients(7, "short requests against long ones, Poisson", "short-and-long"),
            _two_clients(
                8, "long outputs against long inputs, Poisson", "long-output-and-long-input"
            ),
            SyntheticFigure(
                Figure(
                    9,
                    "isolation from a client whose rate rises",
                    _FIGURE_9,
                    _figure_9,
                    _BOTH_PANELS,
                ),
                _runs("increase", "fcfs", *FAIR),
                to_end=True,
                whole=True,
            ),
            SyntheticFigure(
                Figure(
                    10,
                    "three phases",
                    _FIGURE_10,
                    _figure_10,
                    (
                        Panel("service", ("vtc",)),
                        Panel("service", ("lcf",)),
                        Panel("service", (OURS,)),
                    ),
                ),
                _runs("shift", "lcf", *FAIR),
                to_end=True,
                whole=True,
            ),
            SyntheticFigure(
                Figure(
                    15,
                    "size of the pool and length of the requests",
                    _FIGURE_15,
                    _figure_15,
                    (
                        Panel("difference", ("vtc, pool 35,000", "vtc, pool 65,000")),
                        Panel(
                            "difference",
                            ("vtc, pool 35,000", "vtc, 512+512 tokens", "vtc, 768+768 tokens"),
                        ),
                        Panel("difference", tuple(f"{OURS}, {each}" for each in _SETTINGS)),
                    ),
                ),
                tuple(
                    Run(f"{name}, {setting}", suite, name)
                    for name in FAIR
                    for setting, suite in _SETTINGS.items()
                ),
                share=0.5,  # what it shows does not change, and these are the longest runs
            ),
            SyntheticFigure(
                Figure(
                    16,
                    "weights 1:2:3:4",
                    _FIGURE_16,
                    _figure_16,
                    (
                        Panel("service", ("vtc",)),
                        Panel("service", ("vtc-weighted",)),
                        Panel("service", (f"{OURS} 1:2:3:4",)),
                    ),
                ),
                (
                    *_runs("weighted", "vtc", OURS),
                    Run("vtc-weighted", "weighted", "vtc-weighted", weighted=True),
                    Run(f"{OURS} 1:2:3:4", "weighted", OURS, weighted=True),
                ),
            ),
            SyntheticFigure(
                Figure(
                    19,
                    "length prediction",
                    _FIGURE_19,
                    _figure_19,
                    tuple(
                        Panel("difference", tuple(f"{name}, {clients}" for name in _PREDICTING))
                        for clients in _BACKLOGGED
                    ),
                ),
                tuple(
                    Run(f"{name}, {clients}", suite, name)
                    for clients, suite in _BACKLOGGED.items()
                    for name in _PREDICTING
                ),
            ),
        )
    }
)
"""By number."""
