"""First paint of the console's pages and the server's cost of a live page, over very many rows.

    .venv/bin/python benchmarks/scripts/console_speed.py [--json OUT]

The setup is a SQLite file with 10,000 clients, 100,000 runs and 200,000 calls, an embedded server
on it, and a headless Chromium on the same machine. First paint is the browser's own first
contentful paint. The cost of a live page is the CPU time of the server's process, without its
workers, over 30 s with the page open less that of 30 s without, each three times alternately. Takes
about 20 minutes; nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from chromium import Browser
from live_server import LiveServer
from many_clients import APP, TENANT, USER, fill

from fairserve.benchmarks.machine import machine

PAGES = (
    "overview",
    "throttling",
    "refusals",
    "clients",
    "clients/apps",
    "interactions",
    f"interactions?tenant={TENANT}",
    f"interactions?user={USER}",
    "interactions?offset=50000",
    f"interactions/{TENANT}/{APP}/run_7",
    "usage",
    "cluster",
    "audit",
)
LIVE = ("overview", "refusals", "clients", "interactions", "cluster")
ROUNDS = 5
WINDOW_S = 30.0
WINDOWS = 3
PAINT = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="OUT")
    out = parser.parse_args().json
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        fill(folder / "data" / "fairserve.sqlite3")
        with LiveServer(folder, workers=1) as server:
            figures = measure(server)
    for figure in figures:
        low, high = figure["spread"]
        print(
            f"{figure['name']:48} {figure['value']:8.2f} {figure['unit']:12} {low:.2f} to {high:.2f}"
        )
    if out is not None:
        out.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n")


def measure(server: LiveServer) -> list[dict[str, object]]:
    """Return all figures."""
    browser = Browser()
    found = []
    try:
        with browser.visit(server.url) as visit:
            visit.sign_in(server.admin_key)
            found += [
                figure(f"first paint {page}", "ms", paints(visit, page), 1000) for page in PAGES
            ]
            found += [
                figure(f"live {page}", "% of a core", costs(server, visit, page), 2)
                for page in LIVE
            ]
    finally:
        browser.close()
    return found


def figure(name: str, unit: str, values: list[float], target: float) -> dict[str, object]:
    """Return one figure as the benchmarks write it."""
    spread = [min(values), max(values)]
    value = statistics.median(values)
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "spread": spread,
        "target": target,
        "peers": {},
    }


def paints(visit, page: str) -> list[float]:
    """Return the first contentful paint of several loads, in ms."""
    found = []
    for _ in range(ROUNDS):
        assert visit.open(f"/console/{page}") == 200, page
        visit.page.wait_for_function(f"() => {PAINT}.length > 0")
        found.append(visit.page.evaluate(PAINT)[0])
    return found


def costs(server: LiveServer, visit, page: str) -> list[float]:
    """Return the CPU of the server with a page open less without, in percent of a core."""
    process = psutil.Process(server.process.pid)
    found = []
    for _ in range(WINDOWS):
        visit.page.goto("about:blank")
        without = share(process)
        visit.open(f"/console/{page}")
        time.sleep(2)  # loading it is another figure
        found.append(share(process) - without)
    return found


def share(process: psutil.Process) -> float:
    """Return the CPU use of a process over the next half minute, in percent of a core."""
    before = process.cpu_times()
    time.sleep(WINDOW_S)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / WINDOW_S


if __name__ == "__main__":
    main()
