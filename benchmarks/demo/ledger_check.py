"""Checks the server's ledger against the clients' observations, per app and outcome.

A call that a client cut off is in doubt: the server may not have received it, or may have completed
it at that moment. So each count must be between the clients' count and that plus the calls in
doubt; if nothing was cut off they must be equal. Rows are written in the background, so the ledger
is polled for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from fairserve.benchmarks.demo.catalogue import DemoManagement, RegisteredApp

LATEST_S = 60.0
"""Seconds within which the rows are written on a machine that has other work, too."""
INTERVAL_S = 0.25


async def ledger_problems(
    management: DemoManagement,
    apps: Mapping[str, RegisteredApp],
    outcomes: Counter[tuple[str, str]],
) -> list[str]:
    """Return the differences; empty if there are none. Waits up to ``LATEST_S`` for the ledger."""
    problems: list[str] = []
    for _ in range(round(LATEST_S / INTERVAL_S)):
        rows = await management.usage_by_app()
        problems = [
            problem
            for name, app in apps.items()
            for problem in compare(name, rows.get(app.app_id, {}), outcomes)
        ]
        if not problems:
            break
        await asyncio.sleep(INTERVAL_S)
    return problems


def compare(app: str, row: Mapping[str, int], outcomes: Counter[tuple[str, str]]) -> list[str]:
    """Return the differences between an app's ledger row and the clients' counts by outcome."""
    seen = {outcome: count for (name, outcome), count in outcomes.items() if name == app}
    doubt = seen.get("cancelled", 0)
    sure = sum(seen.values()) - doubt
    counts = {
        "calls": (row.get("calls", 0) + row.get("uncharged_calls", 0), sure),
        "completed calls": (row.get("completed", 0), seen.get("completed", 0)),
        "rejected calls": (row.get("refused", 0), seen.get("refused", 0)),
    }
    return [
        f"the ledger has {ledger} {what} of {app}, the clients saw {own}"
        + (f" and cut {doubt} off" if doubt else "")
        for what, (ledger, own) in counts.items()
        if not own <= ledger <= own + doubt
    ]
