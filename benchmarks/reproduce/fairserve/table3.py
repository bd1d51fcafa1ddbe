"""Table 3 of the FairServe paper: throughput, time to first token, and served users.

Additional columns: served runs and time to first token of the well-behaved users alone, and the
service difference in typical calls (VTC's metric with FairServe's service).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.checks import always, less, measured, not_beaten
from fairserve.benchmarks.reproduce.fairserve.mix import (
    FS,
    OURS,
    RPM,
    setting_text,
    simulated_mix,
    systems,
    variants,
)
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row
from fairserve.benchmarks.reproduce.setting import Setting

_PROMPT = Column("prompt tok/s", lambda s: float(s["throughput_tokens_per_s"]["prompt"]))
_DECODE = Column("decode tok/s", lambda s: float(s["throughput_tokens_per_s"]["decode"]))
_TTFT = Column("TTFT (s)", lambda s: float(s["ttft_s"]["mean"]), 1)
_REQUESTS = Column("requests served %", lambda s: float(s["requests"]["provided"]), 1)
_INTERACTIONS = Column("interactions served %", lambda s: float(s["interactions"]["provided"]), 1)
_PAPER = (
    _PROMPT,
    _DECODE,
    _TTFT,
    _REQUESTS,
    _INTERACTIONS,
    Column("users served, requests %", lambda s: float(s["requests"]["users"]), 1),
    Column("users served, interactions %", lambda s: float(s["interactions"]["users"]), 1),
)


def _good_served(summary: Mapping[str, Any]) -> float:
    return 100.0 * float(summary["groups"]["well-behaved"]["served_interactions_share"])


def total_rate(summary: Mapping[str, Any]) -> float:
    """Return prompt and output tokens per second."""
    return float(summary["throughput_tokens_per_s"]["total"])


def delayed(summary: Mapping[str, Any]) -> float:
    """Return the percentage of delayed users."""
    return float(summary["delayed_users"]["10"])


_DIFFERENCE = Column("difference", lambda s: float(s["slice_difference"]["avg"]), 1)
_COLUMNS = (
    *_PAPER,
    Column("well-behaved: runs served %", _good_served, 1),
    Column("TTFT p99 (s)", lambda s: float(s["good_ttft_s"]["p99"]), 1),
    _DIFFERENCE,
)
TABLE_3: Mapping[str, tuple[float, ...]] = {
    RPM: (11155.15, 182.85, 40.20, 51.52, 85.36, 92.03, 87.64),
    "vtc": (12190.10, 262.97, 42.57),
    "fs-w": (12217.11, 267.05, 42.82),
    FS: (12247.98, 267.99, 42.53, 96.67, 100.0, 99.45, 100.0),
}


def fairserve_table3(setting: Setting) -> Report:
    """Run all systems on the mix."""
    simulated = simulated_mix(setting)
    rows = [
        Row(
            name,
            measured(_COLUMNS, simulated[name]),
            {c.name: value for c, value in zip(_PAPER, TABLE_3.get(name, ()), strict=False)},
        )
        for name in systems() | variants()
    ]
    others = [name for name in systems() if name != OURS]
    checks = []
    for fs in (FS, OURS):
        checks += [
            less(f"{fs} computes more prompt tokens than {RPM}", simulated, RPM, fs, _PROMPT.of),
            less(f"{fs} computes more prompt tokens than vtc", simulated, "vtc", fs, _PROMPT.of),
            less(f"{fs} generates more tokens than {RPM}", simulated, RPM, fs, _DECODE.of),
            less(f"{fs} generates more tokens than vtc", simulated, "vtc", fs, _DECODE.of),
            less(
                f"{RPM} has a lower TTFT than {fs}, since it refuses blindly",
                simulated, RPM, fs, _TTFT.of, digits=1,
            ),
            _near_vtc(fs, rows),
            less(f"{fs} serves more requests", simulated, RPM, fs, _REQUESTS.of, digits=1),
            less(f"{fs} serves more interactions", simulated, RPM, fs, _INTERACTIONS.of, digits=1),
            always(
                f"{fs} serves all runs of well-behaved users",
                simulated[fs], _good_served, 100.0, 100.0,
            ),
        ]  # fmt: skip
    checks += [
        not_beaten(simulated, OURS, others, _DIFFERENCE.of, "service difference", total_rate),
        not_beaten(simulated, OURS, others, delayed, "users delayed (%)", total_rate),
    ]
    text = (
        f"{setting_text(setting)} The paper gives no unit of TTFT. Of "
        "the runs that had any answer, requests are those of one call, interactions those of several; "
        "the mix refuses the interactions of abusers, too. Difference: mean service difference in "
        "typical calls a minute."
    )
    title = "FairServe, throughput and latency"
    return Report("fairserve-table3", title, text, _COLUMNS, rows, checks)


def _near_vtc(fs: str, rows: list[Row]) -> Check:
    """Check that the TTFTs are close; the paper has them within 0.1 %."""
    mine, other = (
        row.measured[_TTFT.name].value for name in (fs, "vtc") for row in rows if row.name == name
    )
    return Check(
        f"{fs} has the mean TTFT of vtc, within a quarter",
        abs(mine / other - 1) <= 0.25,
        f"{mine:.1f} s against {other:.1f} s",
    )
