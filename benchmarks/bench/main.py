"""``fairserve bench GROUP``: what the platform itself costs, as figures with targets.

A group is a module with a ``main`` of its own, imported when it is asked for. Exit codes: 0 measured
(whatever the figures are), 1 not possible here, 2 wrong use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence


def _scheduling(argv: Sequence[str]) -> int:
    from fairserve.benchmarks.bench.scheduling import main

    return main(argv)


def _interactions(argv: Sequence[str]) -> int:
    from fairserve.benchmarks.bench.interactions import main

    return main(argv)


def _engine(argv: Sequence[str]) -> int:
    from fairserve.benchmarks.bench.engine.command import main

    return main(argv)


def _usage(argv: Sequence[str]) -> int:
    from fairserve.benchmarks.bench.usage import main

    return main(argv)


GROUPS: Mapping[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "scheduling": ("routing, prefix trees, local schedulers, the dispatcher", _scheduling),
    "interactions": ("the tracker of runs: a call's time, and what is kept of it", _interactions),
    "usage": ("reports from the rollups of a large ledger on PostgreSQL", _usage),
    "engine": ("the embedded engine beside transformers, and the simulator beside it", _engine),
}
"""Commands by what they measure; each parses its own arguments."""


def main(argv: Sequence[str]) -> int:
    """Run a group; returns the exit code."""
    if argv and argv[0] in GROUPS:
        _, run = GROUPS[argv[0]]
        return run(argv[1:])
    parser = argparse.ArgumentParser(
        prog="fairserve bench",
        description="Measure what the platform itself costs.",
        allow_abbrev=False,
    )
    groups = parser.add_subparsers(dest="group", required=True, metavar="GROUP")
    for name, (text, _) in GROUPS.items():
        groups.add_parser(name, help=text, add_help=False)
    parser.parse_args(argv)
    return 2  # not reached: there is no group that the first argument did not name
