"""Figure 11 of the VTC paper: the requests of the recorded trace. Nothing is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, spread
from fairserve.benchmarks.reproduce.service_history import Floats
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.model import Trace

DURATION_S = 600.0
RANKS = (13, 14, 26, 27)
"""Clients shown in the paper, ranked by number of requests: two middle ones, the two busiest."""
_LENGTHS = "136 in [2, 1021], 256 out [2, 977]"
_COLUMNS = (
    ReportColumn("requests", lambda rates: float(rates[0])),
    ReportColumn("least /min", lambda rates: float(rates[1].min())),
    ReportColumn("median /min", lambda rates: float(np.median(rates[1]))),
    ReportColumn("greatest /min", lambda rates: float(rates[1].max())),
)
"""Columns of the number of requests, and of the numbers in each window."""


def by_requests(trace: Trace) -> list[str]:
    """Return the users, sorted by number of requests."""
    arrivals = _arrivals(trace)
    return sorted(arrivals, key=lambda user: (len(arrivals[user]), user))


def over_share(trace: Trace, service_per_s: float) -> list[str]:
    """Return the users that request more than the max-min fair share of this service."""
    asked: dict[str, float] = {}
    for each in trace.interactions:
        service = sum(call.input_tokens + 2 * call.output_tokens for call in each.calls)
        asked[each.user] = asked.get(each.user, 0.0) + service / DURATION_S
    left = service_per_s
    ordered = sorted(asked, key=lambda user: (asked[user], user))
    for number, user in enumerate(ordered):
        if asked[user] > left / (len(ordered) - number):
            return ordered[number:]
        left -= asked[user]
    return []


def request_figure(setting: Setting, trace: Trace) -> Report:
    """Return the rates of all clients and of those shown in the paper, in windows of a minute."""
    arrivals, order = _arrivals(trace), by_requests(trace)
    centres_s = np.arange(30.0, DURATION_S - 30.0 + 1e-6, 7.5)
    rates = {user: _per_minute(arrivals[user], centres_s) for user in order}
    total = sum(rates.values(), np.zeros_like(centres_s))
    seen = {"all clients": (len(trace), total)}
    for rank in RANKS:
        user = order[rank - 1]
        seen[f"{rank}th of 27: client {user}"] = len(arrivals[user]), rates[user]
    rows = [
        ReportRow(name, {column.name: spread([column.of(values)]) for column in _COLUMNS})
        for name, values in seen.items()
    ]
    plots: tuple[str, ...] = ()
    if setting.plots is not None:
        from fairserve.benchmarks.reproduce.figure_plot import draw_rates

        plots = (draw_rates(setting.plots / "vtc-figure11.png", centres_s, rates, total).name,)
    text = (
        "Requests in windows of 60 s, 7.5 s apart. The text of the paper gives 210 requests a minute "
        f"for the whole system; the trace that was published has {len(trace) / DURATION_S * 60:,.0f}."
    )
    checks = _checks(trace, [len(arrivals[user]) for user in order], rates, total)
    title = "VTC, requests of the recorded trace"
    return Report("vtc-figure11", title, text, _COLUMNS, rows, checks, plots)


def _arrivals(trace: Trace) -> dict[str, list[float]]:
    arrivals: dict[str, list[float]] = {}
    for each in trace.interactions:
        arrivals.setdefault(each.user, []).append(each.arrival_s)
    return arrivals


def _per_minute(arrivals_s: Iterable[float], centres_s: Floats) -> Floats:
    times = np.asarray(list(arrivals_s))
    inside = [((c - 30.0 <= times) & (times < c + 30.0)).sum() for c in centres_s]
    return np.asarray(inside, dtype=np.float64)


def _checks(
    trace: Trace, counts: Sequence[int], rates: Mapping[str, Floats], total: Floats
) -> list[Check]:
    """Check the paper's claims; ``counts`` are ascending."""
    calls = [call for each in trace.interactions for call in each.calls]
    inputs, outputs = [c.input_tokens for c in calls], [c.output_tokens for c in calls]
    lengths = (
        f"{np.mean(inputs):.0f} in [{min(inputs)}, {max(inputs)}], "
        f"{np.mean(outputs):.0f} out [{min(outputs)}, {max(outputs)}]"
    )
    busiest, others = sum(counts[-3:]), sum(counts[:-3])
    steadiest = min(float(values.max() / values.mean()) for values in rates.values())
    swing = float(total.max() / total.min())
    return [
        Check("27 clients", len(counts) == 27, f"{len(counts)}"),
        Check(f"mean and range of the lengths are {_LENGTHS}", lengths == _LENGTHS, lengths),
        Check(
            "a few clients send many more: 3 of them more than all others",
            busiest > others,
            f"{busiest} against {others}",
        ),
        Check(
            "each client's rate is dynamic: a minute of at least 1.5 times its mean",
            steadiest >= 1.5,
            f"the steadiest {steadiest:.1f} times",
        ),
        Check(
            "the total is dynamic: a minute of 1.5 times the quietest",
            swing >= 1.5,
            f"{swing:.1f} times",
        ),
    ]
