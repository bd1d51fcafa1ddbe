"""``fairserve reproduce status``, ``stamp`` and ``short-cases``: whether reports are as new as the code.

Exit codes: 0 done, and no report is stale; 1 a report is stale, or one was not stamped; 2 wrong use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairserve.benchmarks.evidence.committed import COMMITTED, read_figures, write_figures
from fairserve.benchmarks.evidence.fingerprint import RESULTS, Fingerprints
from fairserve.benchmarks.evidence.reports import EVIDENCE
from fairserve.benchmarks.evidence.status import (
    FAILED,
    ReportState,
    states,
    status_json,
    status_text,
)
from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser


def main(argv: Sequence[str]) -> int:
    """Run one of the commands; returns the exit code."""
    return COMMANDS[argv[0]](argv[1:])


def _status(argv: Sequence[str]) -> int:
    parser = _parser("status", "Say which reports are older than the code. Exit code 1 if any is.")
    parser.add_argument("--json", action="store_true", help="as a JSON document")
    arguments = parser.parse_args(argv)
    found = _states(arguments)
    print(status_json(found) if arguments.json else status_text(found))
    return int(any(each.state in FAILED for each in found))


def _stamp(argv: Sequence[str]) -> int:
    parser = _parser(
        "stamp",
        "Write the present fingerprint into stale reports whose short cases give the same figures "
        "as before.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="(default: all stale reports)")
    parser.add_argument(
        "--because",
        type=_reason,
        metavar="REASON",
        help="run nothing, but write why the report still holds, until the code changes again",
    )
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.names if name not in EVIDENCE]:
        parser.error(f"unknown report {unknown[0]}; known: {', '.join(EVIDENCE)}")
    if arguments.because is not None and not arguments.names:
        parser.error("--because needs the names of the reports that it is about")
    from fairserve.benchmarks.evidence.short_cases import figures_of
    from fairserve.benchmarks.evidence.stamp import Stamper, StampError

    stamper = Stamper(arguments.results, read_figures(_committed(arguments)), figures_of)
    code = 0
    for each in _states(arguments):
        name = each.evidence.name
        wanted = name in arguments.names if arguments.names else each.state == "stale"
        if not wanted:
            continue
        if each.state == "fresh":
            print(f"{name}: fresh")
            continue
        try:
            if arguments.because is None:
                stamper.stamp(each)
            else:
                stamper.hold(each, arguments.because)
            print(f"{name}: stamped")
        except StampError as error:
            print(f"fairserve reproduce stamp: {error}", file=sys.stderr)
            code = 1
    return code


def _short_cases(argv: Sequence[str]) -> int:
    from fairserve.benchmarks.evidence.short_cases import SHORT_CASES, differences, figures_of

    parser = _parser(
        "short-cases",
        "Run short cases and write their figures to benchmarks/short_cases.json, after a change that is "
        "meant to change them. The reports that they cover must then be made again.",
    )
    parser.add_argument("names", nargs="+", choices=SHORT_CASES, metavar="NAME")
    arguments = parser.parse_args(argv)
    committed = read_figures(_committed(arguments))
    for name in arguments.names:
        seen = figures_of(name)
        lines = differences(seen, committed.get(name, {}))
        print("\n".join([f"{name}: {len(lines) or 'none'} of its figures changed", *lines]))
        committed[name] = seen
    write_figures(committed, _committed(arguments))
    return 0


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "status": _status,
    "stamp": _stamp,
    "short-cases": _short_cases,
}


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=f"fairserve reproduce {name}", description=description, allow_abbrev=False
    )
    parser.add_argument(
        "--results",
        type=_folder,
        default=RESULTS,
        metavar="DIR",
        help="the reports (default: benchmarks/results of the checkout)",
    )
    return parser


def _committed(arguments: argparse.Namespace) -> Path:
    path: Path = arguments.results.parent / COMMITTED.name
    return path


def _states(arguments: argparse.Namespace) -> list[ReportState]:
    if not arguments.results.is_dir():
        print(
            f"fairserve reproduce: there is no folder {arguments.results}; reports are in a checkout, "
            "not in the installed package",
            file=sys.stderr,
        )
        raise SystemExit(USAGE_ERROR)
    return states(EVIDENCE.values(), arguments.results, Fingerprints())


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    return path


def _reason(text: str) -> str:
    if not text.strip() or "\n" in text:
        raise argparse.ArgumentTypeError("must be one line that is not empty")
    return text.strip()
