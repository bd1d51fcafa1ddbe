"""Figures 3, 6, 7, 8, 15, 16 and 19 of the VTC paper: clients that are backlogged all the time.

Their service over any interval differs by at most a constant, whatever they send; see
:mod:`fairserve.benchmarks.reproduce.vtc.synthetic` for the bound.
"""

from __future__ import annotations

from fairserve.benchmarks.reproduce.claims import at_least, at_most, between, less, less_by_median
from fairserve.benchmarks.reproduce.figure import Panel, PaperFigure, Rows
from fairserve.benchmarks.reproduce.report import Check, ReportColumn
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.vtc.synthetic import (
    BOUND,
    DIFFERENCE,
    FAIR,
    GROWTH,
    INTERVAL,
    THROUGHPUT,
    SyntheticFigure,
    SyntheticRun,
    bound,
    mean_of,
    minutes_off,
    panels,
    runs_of,
)
from fairserve.benchmarks.reproduce.vtc.tables import OURS
from fairserve.benchmarks.traces.generate.vtc_suites import VTC_SUITES


def _bounded(rows: Rows, limit: float = BOUND) -> list[Check]:
    """Check that the difference is bounded and level under VTC, and neither under FCFS."""
    fcfs = rows["fcfs"]
    checks = []
    for name in FAIR:
        row = rows[name]
        claim = "while both are backlogged, their service differs by no more than 2U"
        checks.append(at_most(claim, row, INTERVAL.name, limit))
        claim = "the difference does not grow: by less than a tenth of what it does under FCFS"
        checks.append(less(claim, row, fcfs, GROWTH.name, 0.1))
    claim = "the client with more requests gets more, past 2U"
    checks.append(at_least(claim, fcfs, DIFFERENCE.name, limit))
    return checks


_BOUNDED = (DIFFERENCE, INTERVAL, GROWTH, THROUGHPUT)
_BOUNDED_PANELS = (Panel("difference", ("fcfs", *FAIR), BOUND), *panels("service", *FAIR))


def _two_clients(number: int, title: str, suite: str) -> SyntheticFigure:
    figure = PaperFigure(number, title, _BOUNDED, _bounded, _BOUNDED_PANELS)
    return SyntheticFigure(figure, runs_of(suite, "fcfs", *FAIR))


# --- Figure 6: one of them comes and goes ------------------------------------------------------------

_FIGURE_6 = (
    DIFFERENCE,
    INTERVAL,
    GROWTH,
    ReportColumn(
        "client 1 of client 2 while off",
        lambda h: mean_of(h, minutes_off(h), "client-1") / mean_of(h, minutes_off(h), "client-2"),
        2,
    ),
)


def _figure_6(rows: Rows) -> list[Check]:
    claim = "client 1, still backlogged while off, gets what client 2 gets, within 15 %"
    return _bounded(rows) + [
        between(claim, rows[name], _FIGURE_6[-1].name, 0.85, 1.15) for name in FAIR
    ]


# --- Figure 15: pool size and request length -------------------------------------------------------

_SETTINGS = {
    "pool 35,000": "pool-35000",
    "pool 65,000": "pool-65000",
    "512+512 tokens": "length-512",
    "768+768 tokens": "length-768",
}
_STD = "std of difference"
_FIGURE_15 = (
    DIFFERENCE,
    INTERVAL,
    ReportColumn(_STD, lambda h: float(h.difference.std())),
    THROUGHPUT,
)


def _figure_15(rows: Rows) -> list[Check]:
    checks = []
    for setting, suite in _SETTINGS.items():
        pool = VTC_SUITES[suite].pool_tokens
        for name in FAIR:
            claim = "while both are backlogged, their service differs by no more than 2U"
            checks.append(at_most(claim, rows[f"{name}, {setting}"], INTERVAL.name, bound(pool)))
    small, large, longer, longest = (rows[f"vtc, {setting}"] for setting in _SETTINGS)
    checks += [
        less("a larger pool lets it vary more (65,000)", small, large, _STD),
        less("longer requests let it vary more (512+512)", small, longer, _STD),
        less("longer requests let it vary more (768+768)", small, longest, _STD),
    ]
    ratio = longest.measured[_STD].value / longer.measured[_STD].value
    claim = "vtc: 768+768 varies as 512+512 does, within 30 %, in the median"
    checks.append(Check(claim, 0.7 <= ratio <= 1.3, f"{ratio:.2f} of it"))
    checks += [
        less("varies less than VTC", rows[f"{OURS}, {setting}"], rows[f"vtc, {setting}"], _STD)
        for setting in _SETTINGS
    ]
    return checks


# --- Figure 16: weights ----------------------------------------------------------------------------


def _entitled(history: ServiceHistory, weighted: bool) -> list[float]:
    """Return the service of each client over its weight, relative to the mean."""
    weights = VTC_SUITES["weighted"].weights
    received = [
        float(values[-1]) / (weights[client] if weighted else 1.0)
        for client, values in history.accumulated.items()
    ]
    return [each * len(received) / sum(received) for each in received]


def _shares(client: int) -> ReportColumn:
    return ReportColumn(
        f"client {client} of client 1",
        lambda h: float(h.accumulated[f"client-{client}"][-1] / h.accumulated["client-1"][-1]),
        2,
    )


_FIGURE_16 = (
    _shares(2),
    _shares(3),
    _shares(4),
    ReportColumn("off equal %", lambda h: 100 * max(abs(x - 1) for x in _entitled(h, False)), 1),
    ReportColumn("off 1:2:3:4 %", lambda h: 100 * max(abs(x - 1) for x in _entitled(h, True)), 1),
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
# If the clients' arrivals happen to alternate, VTC serves them in turn without any prediction: one
# seed in five. So these checks compare medians.
_NUMBERS = {"2 clients": "backlogged-2", "8 clients": "backlogged-8"}
_MEAN = ReportColumn("mean difference", lambda h: float(h.difference.mean()))
_FIGURE_19 = (DIFFERENCE, _MEAN, INTERVAL, THROUGHPUT)


def _figure_19(rows: Rows) -> list[Check]:
    checks = []
    for clients in _NUMBERS:
        plain, noisy, oracle, ours = (rows[f"{name}, {clients}"] for name in _PREDICTING)
        claim = "bounded without prediction: by 2U while backlogged"
        checks += [
            at_most(claim, plain, INTERVAL.name, BOUND),
            less_by_median("lower with a prediction off by up to 50 %", noisy, plain, _MEAN.name),
            less_by_median("lower still with the true length", oracle, noisy, _MEAN.name),
            less_by_median("lower than VTC without a prediction", ours, plain, _MEAN.name),
        ]
    return checks


BACKLOGGED = (
    _two_clients(3, "two overloaded clients", "overload"),
    SyntheticFigure(
        PaperFigure(6, "on and off, over its share", _FIGURE_6, _figure_6, _BOUNDED_PANELS),
        runs_of("on-off-above-share", "fcfs", *FAIR),
    ),
    _two_clients(7, "short requests against long ones, Poisson", "short-and-long"),
    _two_clients(8, "long outputs against long inputs, Poisson", "long-output-and-long-input"),
    SyntheticFigure(
        PaperFigure(
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
            SyntheticRun(f"{name}, {setting}", suite, name)
            for name in FAIR
            for setting, suite in _SETTINGS.items()
        ),
        share=0.5,  # the effect is the same, and these are the longest runs
    ),
    SyntheticFigure(
        PaperFigure(
            16,
            "weights 1:2:3:4",
            _FIGURE_16,
            _figure_16,
            panels("service", "vtc", "vtc-weighted", f"{OURS} 1:2:3:4"),
        ),
        (
            *runs_of("weighted", "vtc", OURS),
            SyntheticRun("vtc-weighted", "weighted", "vtc-weighted", weighted=True),
            SyntheticRun(f"{OURS} 1:2:3:4", "weighted", OURS, weighted=True),
        ),
    ),
    SyntheticFigure(
        PaperFigure(
            19,
            "length prediction",
            _FIGURE_19,
            _figure_19,
            tuple(
                Panel("difference", tuple(f"{name}, {clients}" for name in _PREDICTING))
                for clients in _NUMBERS
            ),
        ),
        tuple(
            SyntheticRun(f"{name}, {clients}", suite, name)
            for clients, suite in _NUMBERS.items()
            for name in _PREDICTING
        ),
    ),
)
