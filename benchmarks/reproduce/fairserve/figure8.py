"""Figure 8 of the FairServe paper: aborted interactions, wasted tokens, throttled and delayed users.

The last two rows show why a claim does not hold (:func:`fairserve_mix.variants`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.checks import Simulated, always, less, measured
from fairserve.benchmarks.reproduce.fairserve.mix import (
    FS,
    FS_MENDED,
    OURS,
    RPM,
    STRICT_RPM,
    setting_text,
    simulated_mix,
)
from fairserve.benchmarks.reproduce.fairserve.plots import draw_bars
from fairserve.benchmarks.reproduce.fairserve.table3 import delayed
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row
from fairserve.benchmarks.reproduce.setting import Setting


def _share(key: str, name: str) -> Column:
    """Return a column of the throttling quality in percent; NaN if nobody was throttled."""

    def value(summary: Mapping[str, Any]) -> float:
        share = summary.get("throttling", {}).get(key)
        return math.nan if share is None else 100.0 * float(share)

    return Column(name, value)


def _least_rpm(summary: Mapping[str, Any]) -> float:
    rates = summary["throttled_rpm"]
    return float(rates[0]) if rates else math.nan


ABORTED = Column("aborted runs", lambda s: float(s["aborted_interactions"]))
WASTED = Column("tokens wasted by throttling", lambda s: float(s["wasted_tokens"]["throttled"]))
DELAYED = Column("users delayed %", delayed, 2)
PRECISION = _share("precision", "abusers among throttled %")
RECALL = _share("recall", "abusers throttled %")
_COLUMNS = (
    ABORTED,
    WASTED,
    Column("well-behaved users throttled", lambda s: float(s["throttled_good_users"])),
    PRECISION,
    RECALL,
    Column("least calls/min of a throttled user", _least_rpm, 1),
    Column("million tokens on abusers", lambda s: s["throttling"]["abusive_tokens"] / 1e6, 2),
    DELAYED,
    Column("well-behaved %", lambda s: float(s["delayed_good_users"]["10"]), 2),
)
_ABUSIVE = _COLUMNS[6]
FIGURE_8: Mapping[str, Mapping[str, float]] = {
    RPM: {WASTED.name: 15_660.0, DELAYED.name: 93 * 0.93},
    "vtc": {DELAYED.name: 10.67 * 0.93},
    FS: {WASTED.name: 0.0, DELAYED.name: 0.93},
}


def fairserve_figure8(setting: Setting) -> Report:
    """Run all systems on the mix, and two variants."""
    simulated = simulated_mix(setting)
    rows = [
        Row(name, measured(_COLUMNS, summaries), FIGURE_8.get(name, {}))
        for name, summaries in simulated.items()
    ]
    checks = [
        less(f"{rpm} wastes tokens by throttling, {FS} does not", simulated, FS, rpm, WASTED.of)
        for rpm in (RPM, STRICT_RPM)
    ]
    for fs in (FS, FS_MENDED, OURS):
        checks += _about(simulated, fs)
    checks += [
        less(f"vtc delays fewer users than {RPM}", simulated, "vtc", RPM, delayed, digits=1),
        always(
            f"{STRICT_RPM} throttles well-behaved users (precision below 90 %)",
            simulated[STRICT_RPM], PRECISION.of, 0.0, 90.0,
        ),
    ]  # fmt: skip
    text = (
        f"{setting_text(setting)} Aborted: refused at its first call, or cut by a refusal; the paper "
        "gives a ratio only, 21.15 times as many under RPM. Its wasted tokens are a mean over runs of "
        "unknown length. Throttled: refused at least once; precision is the abusers' share of the "
        "throttled, recall the share of the abusers that was. Delayed: a call waited over 10 s (the "
        "paper gives no threshold). Where nobody is throttled there is no precision."
    )
    drawn = []
    if setting.plots is not None:
        panels = (ABORTED, WASTED, PRECISION, RECALL, DELAYED)
        drawn = draw_bars(setting.plots / "fairserve-figure8.png", rows, panels)
    title = "FairServe, aborted runs, wasted tokens, throttled and delayed users"
    return Report("fairserve-figure8", title, text, _COLUMNS, rows, checks, drawn)


def _about(simulated: Simulated, fs: str) -> list[Check]:
    """Check the paper's claims about FairServe for one interpretation of it."""
    return [
        less(
            f"{RPM} aborts over 10 times the runs of {fs}",
            simulated, fs, RPM, ABORTED.of, times=10.0,
        ),
        always(f"{fs} wastes no tokens by throttling", simulated[fs], WASTED.of, 0.0, 0.0),
        always(f"{fs}: all users that it throttles are abusers (%)",
               simulated[fs], PRECISION.of, 100.0, 100.0),
        always(f"{fs} throttles at least half of the abusers (%)",
               simulated[fs], RECALL.of, 50.0, 100.0),
        less(f"{fs} spends fewer tokens on abusers than fcfs",
             simulated, fs, "fcfs", _ABUSIVE.of, digits=2),
        less(f"{fs} spends fewer tokens on abusers than vtc",
             simulated, fs, "vtc", _ABUSIVE.of, digits=2),
        less(f"{fs} delays fewer users than vtc", simulated, fs, "vtc", delayed, digits=1),
    ]  # fmt: skip
