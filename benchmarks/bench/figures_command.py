"""A command that measures figures: ``fairserve bench`` and the name of a group of them.

All groups are measured, printed and written alike. What a group has of its own are its parts and what is
said of it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.benchmarks.bench.figure import FigurePart
from fairserve.benchmarks.bench.measure import MIN_ROUNDS, measure
from fairserve.benchmarks.bench.report import details, table, to_plain
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.machine import machine
from fairserve.benchmarks.several_values import SeveralValues
from fairserve.platform.base.command_line import CommandGroup, file_to_write, option, with_options

PACKAGES = ("fairserve", "numpy")
DEFAULT_ROUNDS = 7


_ROUNDS = f"Rounds of each figure; default: {DEFAULT_ROUNDS}."


@dataclass(frozen=True, slots=True)
class FiguresOptions:
    """Options of the command."""

    json: Path | None = None
    only: Sequence[str] = ()
    rounds: int = DEFAULT_ROUNDS


@dataclass(frozen=True, slots=True)
class FiguresCommand:
    """The command of one group."""

    group: str
    """Its name on the command line."""
    description: str
    parts: tuple[FigurePart, ...]
    clock: str = "CPU time of one thread, garbage collector off in a round"

    @property
    def app(self) -> CommandGroup:
        """Return the command line."""
        app = CommandGroup()

        @app.command(
            self.group,
            cls=SeveralValues,
            help=self.description,
            epilog="Figures: " + ", ".join(self._names()),
        )
        @with_options(
            option(
                "json", Path, parser=file_to_write, metavar="OUT", help="Write the figures as JSON."
            ),
            option(
                "only", list[str], parser=self._name, metavar="NAME...", help="Only these figures."
            ),
            option("rounds", int, min=MIN_ROUNDS, max=1000, metavar="N", help=_ROUNDS),
        )
        def command(**given: Any) -> None:
            options = {name: value for name, value in given.items() if value is not None}
            self.measure(FiguresOptions(**options))

        return app

    def measure(self, options: FiguresOptions, *, scale: float = 1.0) -> None:
        """Measure, print, write. A smaller ``scale`` is for tests."""
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
            f"Medians of {options.rounds} rounds with least and greatest; * misses its target. "
            f"{self.clock}.\n{found['cores']} cores of "
            f"{found['processor'] or found['architecture']}, Python {found['python']}; "
            f"{time.monotonic() - begin_s:.0f} s in all."
        )
        document = to_plain(found, results, options.rounds) | {"command": self.command(options)}
        if options.json is not None:
            options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def command(self, options: FiguresOptions) -> str:
        """Return the command without names of files."""
        settings = {
            "rounds": options.rounds,
            "only": " ".join(options.only) or None,
        }
        return command_line(f"fairserve bench {self.group}", settings)

    def _chosen(self, only: Sequence[str]) -> list[FigurePart]:
        return [p for p in self.parts if not only or {f.name for f in p.figures} & set(only)]

    def _names(self) -> list[str]:
        return [figure.name for part in self.parts for figure in part.figures]

    def _name(self, text: str) -> str:
        known = self._names()
        if text not in known:
            raise ValueError(f"unknown figure {text!r}; known: {', '.join(known)}")
        return text


def say(text: str) -> None:
    """Write the progress of a command to standard error."""
    print(text, file=sys.stderr, flush=True)
