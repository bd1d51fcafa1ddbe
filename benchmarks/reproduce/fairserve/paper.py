"""``fairserve-paper``: Tables 3 and 4 and Figures 8 and 9 of the FairServe paper, one page.

Statements of the paper's text that its own tables rule out are listed with the arithmetic and with
the measured values, and count neither way. A *request* is a run of one call, an *interaction* a run
of several calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from statistics import geometric_mean, median

from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.fairserve.checks import Figure, always, less, not_beaten
from fairserve.benchmarks.reproduce.fairserve.plots import draw_bars
from fairserve.benchmarks.reproduce.fairserve.workload import (
    FS,
    RPM,
    TABLE_4_RPM_LIMITS,
    TIMEOUT_S,
    Simulated,
    Summary,
    setting_text,
    simulate_mix,
    simulate_three_apps,
)
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ratio, rows_of
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.traces.generate.agent_mix import TABLE_4

VTC = "vtc"
_FAIRSERVE = (FS, OURS)
"""FairServe as published, and this project's default."""


def fairserve_paper(setting: Setting) -> list[Report]:
    """Return the four parts. Table 3 and the figures share one simulation."""
    simulated = simulate_mix(setting)
    return [
        table3(setting, simulated),
        table4(setting, simulate_three_apps(setting)),
        figure8(setting, simulated),
        figure9(setting, simulated),
    ]


def _published(
    columns: tuple[ReportColumn, ...], values: Mapping[str, tuple[float, ...]]
) -> dict[str, dict[str, float]]:
    """Return published values by system and column; a system may lack the last columns."""
    return {
        name: {column.name: value for column, value in zip(columns, of_row, strict=False)}
        for name, of_row in values.items()
    }


# --- Table 3: throughput, time to first token, and who is served ----------------------------------

_PROMPT = ReportColumn("prompt tok/s", lambda s: float(s["throughput_tokens_per_s"]["prompt"]))
_DECODE = ReportColumn("decode tok/s", lambda s: float(s["throughput_tokens_per_s"]["decode"]))
_TTFT = ReportColumn("TTFT (s)", lambda s: float(s["ttft_s"]["mean"]), 1)
_REQUESTS = ReportColumn("requests served %", lambda s: float(s["requests"]["provided"]), 1)
_INTERACTIONS = ReportColumn(
    "interactions served %", lambda s: float(s["interactions"]["provided"]), 1
)
_DIFFERENCE = ReportColumn("difference", lambda s: float(s["slice_difference"]["avg"]), 1)
_DELAYED = ReportColumn("users delayed %", lambda s: float(s["delayed_users"]), 2)


def _good_served(summary: Summary) -> float:
    return 100.0 * float(summary["groups"]["well-behaved"]["served_interactions_share"])


def _total_rate(summary: Summary) -> float:
    return float(summary["throughput_tokens_per_s"]["total"])


_TABLE_3 = (
    _PROMPT,
    _DECODE,
    _TTFT,
    _REQUESTS,
    _INTERACTIONS,
    ReportColumn("users served, requests %", lambda s: float(s["requests"]["users"]), 1),
    ReportColumn("users served, interactions %", lambda s: float(s["interactions"]["users"]), 1),
    ReportColumn("well-behaved: runs served %", _good_served, 1),
    ReportColumn("TTFT p99 (s)", lambda s: float(s["good_ttft_s"]["p99"]), 1),
    _DIFFERENCE,
)
_TABLE_3_VALUES: Mapping[str, tuple[float, ...]] = {
    RPM: (11155.15, 182.85, 40.20, 51.52, 85.36, 92.03, 87.64),
    VTC: (12190.10, 262.97, 42.57),
    "fs-w": (12217.11, 267.05, 42.82),
    FS: (12247.98, 267.99, 42.53, 96.67, 100.0, 99.45, 100.0),
}


def table3(setting: Setting, simulated: Simulated) -> Report:
    """Return throughput, time to first token and service of each system on the mix."""
    checks = []
    for fs in _FAIRSERVE:
        checks += [
            *(less(f"{fs} computes more prompt tokens than {other}",
                   simulated, other, fs, _PROMPT.of) for other in (RPM, VTC)),
            *(less(f"{fs} generates more tokens than {other}",
                   simulated, other, fs, _DECODE.of) for other in (RPM, VTC)),
            less(f"{RPM} has a lower TTFT than {fs}, since it rejects blindly",
                 simulated, RPM, fs, _TTFT.of, digits=1),
            _near_vtc(fs, simulated),
            less(f"{fs} serves more requests", simulated, RPM, fs, _REQUESTS.of, digits=1),
            less(f"{fs} serves more interactions", simulated, RPM, fs, _INTERACTIONS.of, digits=1),
            always(f"{fs} serves all runs of well-behaved users",
                   simulated[fs], _good_served, 100.0, 100.0),
        ]  # fmt: skip
    others = [name for name in simulated if name != OURS]
    checks += [
        not_beaten(simulated, OURS, others, _DIFFERENCE.of, "service difference", _total_rate),
        not_beaten(simulated, OURS, others, _DELAYED.of, "users delayed (%)", _total_rate),
        less(f"{FS} computes 1.05 times the prompt tokens of {VTC}",
             simulated, VTC, FS, _PROMPT.of, times=1.05,
             contradicted_by="12,247.98 / 12,190.10 = 1.005 in Table 3"),
    ]  # fmt: skip
    text = (
        f"{setting_text(setting)} The paper gives no unit of TTFT. Requests are runs of one call, "
        "interactions those of several, among the runs that had any answer, those of abusers "
        "included. The last three columns are not the paper's: served runs and p99 TTFT of the "
        "well-behaved, and the mean service difference in typical calls a minute."
    )
    rows = rows_of(_TABLE_3, simulated, _published(_TABLE_3, _TABLE_3_VALUES))
    title = "FairServe, throughput and latency"
    notes = (
        "Why a statement fails: both FairServe and VTC saturate the server, so the one that "
        "computes more prompt tokens generates fewer. Abusers' calls generate many tokens for their "
        "prompts, and VTC serves them as many tokens as others.",
    )
    return Report(
        "fairserve-table3", title, text, _TABLE_3, list(rows.values()), checks, notes=notes
    )


def _near_vtc(fs: str, simulated: Simulated) -> Check:
    """Check that the TTFTs are close; the paper has them within 0.1 %."""
    mine, other = (median(map(_TTFT.of, simulated[name])) for name in (fs, VTC))
    return Check(
        f"{fs} has the mean TTFT of {VTC}, within a quarter",
        abs(mine / other - 1) <= 0.25,
        f"{mine:.1f} s against {other:.1f} s",
    )


# --- Table 4: three apps, each with many requests at once -----------------------------------------


def _of_app(app: str, key: str) -> Figure:
    return lambda summary: float(summary["apps"][app][key])


_APPS = tuple(app.app for app, _ in TABLE_4)
_, _HEAVIEST, _LIGHT = _APPS
_WASTED = ReportColumn("tokens wasted", lambda s: float(sum(s["wasted_tokens"].values())))
_JAIN = ReportColumn("Jain (typical calls)", lambda s: float(s["slice_jain_index"]), 3)
_TABLE_4 = (
    *(ReportColumn(f"{app}: served", _of_app(app, "served_requests")) for app in _APPS),
    *(ReportColumn(f"{app}: prompt tok/s", _of_app(app, "prompt_tokens_per_s")) for app in _APPS),
    _WASTED,
    _JAIN,
)
_TABLE_4_VALUES: Mapping[str, tuple[float, ...]] = {
    RPM: (56, 4, 2, 360.99, 859.70, 5.19),
    VTC: (37, 29, 73, 256.14, 374.31, 124.19, 3224),
    "fs-w": (37, 29, 73, 253.41, 390.47, 124.69),
    FS: (37, 27, 80, 258.20, 359.02, 127.58, 461),
}


def table4(setting: Setting, simulated: Simulated) -> Report:
    """Return what each of the three apps is served, and what is wasted."""
    light, heaviest = (_of_app(app, "prompt_tokens_per_s") for app in (_LIGHT, _HEAVIEST))
    checks = []
    for fair in (VTC, "fs-w", FS, OURS):
        checks += [
            less(f"{fair}: {_LIGHT} has more prompt tokens/s than under {RPM}",
                 simulated, RPM, fair, light),
            less(f"{fair}: {_HEAVIEST} has fewer than under {RPM}", simulated, fair, RPM, heaviest),
        ]  # fmt: skip
    checks += [
        less(f"{fs} wastes fewer tokens than {VTC}", simulated, fs, VTC, _WASTED.of)
        for fs in _FAIRSERVE
    ]
    others = [name for name in simulated if name != OURS]
    unfair: Figure = lambda summary: 1.0 - _JAIN.of(summary)  # noqa: E731
    checks.append(not_beaten(simulated, OURS, others, unfair, "1 - Jain", _total_rate))
    text = (
        f"{', '.join(f'{requests} requests of {app.app}' for app, requests in TABLE_4)} within "
        "about a minute, one user for 32 requests; a client aborts its run when it has waited "
        f"{TIMEOUT_S * setting.scale:g} s for a first token. RPM's limit of an app is "
        f"{TABLE_4_RPM_LIMITS.app_rpm} a minute. Rates are over the time until all runs have ended; "
        "the published rates and numbers of requests fit no one length of time, so only directions "
        "are compared. Wasted: tokens of runs that ended without a final response. Jain's index is "
        "over the users' service in typical calls."
    )
    rows = rows_of(_TABLE_4, simulated, _published(_TABLE_4, _TABLE_4_VALUES))
    title = "FairServe, three applications"
    return Report("fairserve-table4", title, text, _TABLE_4, list(rows.values()), checks)


# --- Figure 8: aborted runs, wasted tokens, throttled and delayed users ---------------------------


def _throttling(key: str, name: str) -> ReportColumn:
    """Return a column of the throttling quality in percent; NaN if nobody was throttled."""

    def value(summary: Summary) -> float:
        share = summary.get("throttling", {}).get(key)
        return math.nan if share is None else 100.0 * float(share)

    return ReportColumn(name, value)


def _least_rpm(summary: Summary) -> float:
    return float(min(summary["throttled_rpm"], default=math.nan))


_ABORTED = ReportColumn("aborted interactions", lambda s: float(s["interactions"]["aborted"]))
_REJECTED = ReportColumn("and requests", lambda s: float(s["requests"]["aborted"]))
_THROTTLED = ReportColumn(
    "tokens wasted by throttling", lambda s: float(s["wasted_tokens"]["throttled"])
)
_PRECISION = _throttling("precision", "abusers among throttled %")
_RECALL = _throttling("recall", "abusers throttled %")
_ABUSIVE = ReportColumn(
    "million tokens on abusers", lambda s: s["throttling"]["abusive_tokens"] / 1e6, 2
)
_FIGURE_8 = (
    _ABORTED,
    _REJECTED,
    _THROTTLED,
    ReportColumn("well-behaved users throttled", lambda s: float(s["throttled_good_users"])),
    _PRECISION,
    _RECALL,
    ReportColumn("least calls/min of a throttled user", _least_rpm, 1),
    _ABUSIVE,
    _DELAYED,
    ReportColumn("well-behaved %", lambda s: float(s["delayed_good_users"]), 2),
)
_FIGURE_8_VALUES: Mapping[str, Mapping[str, float]] = {
    RPM: {_THROTTLED.name: 15_660.0, _DELAYED.name: 93 * 0.93},
    VTC: {_DELAYED.name: 10.67 * 0.93},
    FS: {_THROTTLED.name: 0.0, _DELAYED.name: 0.93},
}


def figure8(setting: Setting, simulated: Simulated) -> Report:
    """Return the cost of throttling, and the users that it finds."""
    checks = []
    for fs in _FAIRSERVE:
        checks += _about_throttling(simulated, fs)
    checks += [
        less(f"{VTC} delays fewer users than {RPM}", simulated, VTC, RPM, _DELAYED.of, digits=1),
        always(
            f"{RPM} throttles well-behaved users (precision below 90 %)",
            simulated[RPM], _PRECISION.of, 0.0, 90.0,
        ),
    ]  # fmt: skip
    checks += [
        less(f"{RPM} aborts 21.15 times the interactions of {fs}",
             simulated, fs, RPM, _ABORTED.of, times=21.15,
             contradicted_by="FairServe serves 100 % of them in Table 3, so no ratio to it exists")
        for fs in _FAIRSERVE
    ]  # fmt: skip
    text = (
        "The mix of Table 3. Aborted: rejected at its first call, or cut by a rejection. The "
        "paper's wasted tokens are a mean over runs of unknown length. Throttled: rejected at least "
        "once; precision is the abusers' share of the throttled, recall the share of the abusers "
        "that was. Delayed: a call waited over 10 s (the paper gives no threshold). Where nobody is "
        "throttled there is no precision."
    )
    rows = list(rows_of(_FIGURE_8, simulated, _FIGURE_8_VALUES).values())
    drawn = []
    if setting.plots is not None:
        panels = (_ABORTED, _THROTTLED, _PRECISION, _RECALL, _DELAYED)
        drawn = draw_bars(setting.plots / "fairserve-paper.png", rows, panels)
    title = "FairServe, aborted runs, wasted tokens, throttled and delayed users"
    notes = (
        "Why a statement fails: RPM rejects half of the requests, as published, and the server is "
        "then no longer overloaded, so nobody is delayed; the published share of delayed users is "
        "near that of fcfs. What abusers get under FairServe is near what they get under VTC, since "
        "neither denies them what others leave.",
    )
    return Report("fairserve-figure8", title, text, _FIGURE_8, rows, checks, drawn, notes)


def _about_throttling(simulated: Simulated, fs: str) -> list[Check]:
    """Check the paper's statements about FairServe for one form of it."""
    return [
        less(f"{RPM} wastes more tokens by throttling than {fs}", simulated, fs, RPM, _THROTTLED.of),
        less(f"{RPM} aborts more interactions than {fs}", simulated, fs, RPM, _ABORTED.of),
        always(f"{fs} wastes no tokens by throttling", simulated[fs], _THROTTLED.of, 0.0, 0.0),
        always(f"{fs}: all users that it throttles are abusers (%)",
               simulated[fs], _PRECISION.of, 100.0, 100.0),
        always(f"{fs} throttles at least half of the abusers (%)",
               simulated[fs], _RECALL.of, 50.0, 100.0),
        less(f"{fs} spends fewer tokens on abusers than fcfs",
             simulated, fs, "fcfs", _ABUSIVE.of, digits=2),
        less(f"{fs} spends fewer tokens on abusers than {VTC}",
             simulated, fs, VTC, _ABUSIVE.of, digits=2),
        less(f"{fs} delays fewer users than {VTC}", simulated, fs, VTC, _DELAYED.of, digits=1),
        less(f"{fs} delays fewer users than {RPM}", simulated, fs, RPM, _DELAYED.of, digits=1),
    ]  # fmt: skip


# --- Figure 9: throughput and time to first token of each app -------------------------------------


def _inverse_ttft(app: str) -> Figure:
    def value(summary: Summary) -> float:
        mean = summary["apps"][app]["ttft_s"]["mean"]
        return math.nan if mean is None else 1.0 / float(mean)

    return value


_GAINS: Mapping[str, Callable[[str], Figure]] = {
    "throughput": partial(_of_app, key="tokens_per_s"),
    "1 / TTFT": _inverse_ttft,
}
"""Figures of Figure 9, of which more is better."""
_RULED_OUT = {
    (
        "throughput",
        VTC,
    ): "12,515.97 / 12,453.07 = 1.005 over all apps in Table 3, while each would gain 1.03 or more",
    ("1 / TTFT", VTC): "42.57 / 42.53 = 1.001 in Table 3, while each app would gain 1.03 or more",
    (
        "1 / TTFT",
        RPM,
    ): "40.20 / 42.53 = 0.95 in Table 3, whose text, too, has RPM's TTFT as the lower",
}
"""Gains of every app that Table 3 rules out, with its figures of prompt and decode together."""


def figure9(setting: Setting, simulated: Simulated) -> Report:
    """Return the gain of FairServe in each app, as ratios to other systems under the same seed."""
    gains = [(fs, what, other) for fs in _FAIRSERVE for what in _GAINS for other in (RPM, VTC)]
    columns = [
        ReportColumn(f"{what}: {fs} / {other}", partial(_gain, simulated, fs, what, other), 2)
        for fs, what, other in gains
    ]
    places = {
        app: [(app, seed) for seed in range(setting.seeds)] for app in simulated[FS][0]["apps"]
    }
    rows = list(rows_of(columns, places).values())
    checks = []
    for column, (_, what, other) in zip(columns, gains, strict=True):
        seen = [row.measured[column.name].value for row in rows if column.name in row.measured]
        shown = f"{min(seen):.2f} to {max(seen):.2f}, geometric mean {geometric_mean(seen):.2f}"
        claim = f"{column.name} is above 1 in every app"
        checks.append(Check(claim, min(seen) > 1.0, shown, _RULED_OUT.get((what, other), "")))
    text = (
        "The mix of Table 3. The paper's figure has no numbers; its text has gains of 1.03 to 1.75 "
        "in throughput and of 1.03 to 1.06 in TTFT. Figures are of the well-behaved users of each "
        "app, TTFT of the calls that had a first token."
    )
    notes = (
        "Why a statement fails: abusers flood three apps, and RPM's limits reject hardly any call "
        "of the others. The users of those are served as much by RPM, and no system can serve them "
        "more than they request.",
    )
    title = "FairServe, throughput and time to first token of each app"
    return Report("fairserve-figure9", title, text, columns, rows, checks, notes=notes)


def _gain(simulated: Simulated, fs: str, what: str, other: str, place: tuple[str, int]) -> float:
    """Return a ratio of two systems in an app under a seed."""
    app, seed = place
    of = _GAINS[what](app)
    return ratio(of(simulated[fs][seed]), of(simulated[other][seed]))
