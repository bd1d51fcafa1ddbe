"""Figures of ``fairserve bench ledger``: the rows of a call on SQLite, and their rollup."""

from __future__ import annotations

from fairserve.benchmarks.bench.figure import BenchWorkload, Figure, FigurePart, sized
from fairserve.benchmarks.bench.figures_command import FiguresCommand
from fairserve.benchmarks.bench.ledger_rows import BATCH, ROLLUP, LedgerBatches, Rollup

ROWS = Figure(BATCH, "us", "rows of a call and its run, after 100,000 others", 120, aim=75)
SUMS = Figure(ROLLUP, "us", "a rollup of a quarter hour, per call of it", 20, aim=10)


def _batches(scale: float) -> BenchWorkload:
    return LedgerBatches(sized(100_000, scale, 100), sized(8, scale))


def _rollup(scale: float) -> BenchWorkload:
    return Rollup(sized(20_000, scale, 100))


PARTS: tuple[FigurePart, ...] = (FigurePart((ROWS,), _batches), FigurePart((SUMS,), _rollup))

command = FiguresCommand(
    "ledger",
    "Measure what the database rows of a call cost the server, and their rollup, on SQLite, and hold "
    "the figures against targets.",
    PARTS,
)
app = command.app
"""The command ``fairserve bench ledger``."""
