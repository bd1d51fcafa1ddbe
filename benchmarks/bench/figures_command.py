"""A command that measures figures: ``fairserve bench`` and the name of a group of them.

All groups are measured, printed and written alike. What a group has of its own are its parts, what is
said of it, and whether its costs have curves of growth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairserve.benchmarks.bench.figure import Part
from fairserve.benchmarks.bench.measure import MIN_ROUNDS, measure
from fairserve.benchmarks.bench.report import details, table, to_plain
from fairserve.benchmarks.evidence.origin import present_mark
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.machine import machine
from fairserve.benchmarks.plots import plot_folder

PACKAGES = ("fairserve", "numpy")


@dataclass(frozen=True, slots=True)
class FiguresCommand:
    """The command of one group."""

    group: str
    """Its name on the command line."""
    description: str
    parts: tuple[Part, ...]
    growth: bool = False
    """``--plot`` also measures :mod:`fairserve.benchmarks.bench.growth`, and draws it."""

    def main(self, argv: Sequence[str], *, scale: float = 1.0) -> int:
        """Measure, print, write; returns the exit code. A smaller ``scale`` is for tests."""
        options = self._options(argv)
        mark = present_mark(self.group, self.command(options))
        begin_s = time.monotonic()
        results = measure(self._chosen(options.only), options.rounds, scale=scale, say=say)
        results = [r for r in results if not options.only or r.figure.name in options.only]
        found = machine(PACKAGES)
        print()
        print(table(results))
        print()
        print(details(results))
        print()
        print(
            f"Medians of {options.rounds} rounds with least and greatest; * misses its target. CPU "
            f"time of one thread, garbage collector off in a round.\n{found['cores']} cores of "
            f"{found['processor'] or found['architecture']}, Python {found['python']}; "
            f"{time.monotonic() - begin_s:.0f} s in all."
        )
        document = to_plain(found, results, options.rounds)
        if mark.code:
            document["fingerprint"] = mark.to_plain()
        if options.plot is not None:
            from fairserve.benchmarks.bench.growth import measure_curves
            from fairserve.benchmarks.bench.plots import draw

            curves = measure_curves(options.rounds, scale=scale, say=say)
            document["growth"] = [curve.to_plain() for curve in curves]
            for path in draw(curves, options.plot):
                say(f"wrote {path}")
        if options.json is not None:
            options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return 0

    def command(self, options: argparse.Namespace) -> str:
        """Return the command without names of files."""
        settings = {
            "rounds": options.rounds,
            "only": " ".join(options.only) or None,
            "plot": options.plot is not None,
        }
        return command_line(f"fairserve bench {self.group}", settings)

    def _chosen(self, only: Sequence[str]) -> list[Part]:
        return [p for p in self.parts if not only or {f.name for f in p.figures} & set(only)]

    def _names(self) -> list[str]:
        return [figure.name for part in self.parts for figure in part.figures]

    def _options(self, argv: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"fairserve bench {self.group}",
            description=self.description,
            epilog="Figures: " + ", ".join(self._names()),
            allow_abbrev=False,
        )
        parser.set_defaults(plot=None)
        parser.add_argument("--json", type=output, metavar="OUT", help="write the figures as JSON")
        if self.growth:
            parser.add_argument(
                "--plot",
                type=plot_folder,
                metavar="DIR",
                help="also measure growth, and draw it here",
            )
        parser.add_argument(
            "--only",
            type=self._name,
            nargs="+",
            action="extend",
            default=[],
            metavar="NAME",
            help="only these figures",
        )
        parser.add_argument(
            "--rounds",
            type=rounds,
            default=7,
            help=f"of each figure, {MIN_ROUNDS} or more (default: 7)",
        )
        return parser.parse_args(argv)

    def _name(self, text: str) -> str:
        known = self._names()
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown figure {text!r}; known: {', '.join(known)}")
        return text


def say(text: str) -> None:
    """Write the progress of a command to standard error."""
    print(text, file=sys.stderr, flush=True)


def rounds(text: str) -> int:
    """A number of rounds, for ``argparse``."""
    value = int(text)
    if not MIN_ROUNDS <= value <= 1000:
        raise argparse.ArgumentTypeError(f"allowed: {MIN_ROUNDS} to 1000")
    return value


def output(text: str) -> Path:
    """A file in a folder that exists, for ``argparse``."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path
