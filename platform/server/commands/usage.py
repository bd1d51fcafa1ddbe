"""``fairserve usage``: reports, reconciliation and rollups directly on the database.

Exit codes: 0 done; 1 the rollups differ from the ledger, or the database or a file is not accessible; 2
usage error. A server may be running on the same database.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import get_args

from sqlalchemy import Engine

from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.db.engine import read_only, session_factory
from fairserve.platform.reporting.usage import reconcile
from fairserve.platform.reporting.usage.formats import document
from fairserve.platform.reporting.usage.reports import reporter
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import GROUPS, Format, UsageQuery
from fairserve.platform.reporting.usage.zones import day_bounds, zone_named
from fairserve.platform.server.commands.on_database import (
    FAILED,
    add_database_flags,
    fail,
    on_database,
)
from fairserve.platform.server.settings import Settings

_COMMAND = "fairserve usage"
_SHOWN = 20


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    arguments = _parser().parse_args(argv)
    return on_database(_COMMAND, arguments, arguments.act)


def _report(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    names = ("group_by", "from", "to", "zone", "tenant", "app", "user", "model", "limit", "offset")
    given = {name: getattr(arguments, name) for name in names}
    query = UsageQuery(**{name: value for name, value in given.items() if value is not None})
    with session_factory(engine)() as session:
        ask = reporter(read_only(session), settings, tenant_id=query.tenant, app_id=query.app)
        found = document(query, arguments.format, ask, "app" if query.tenant else "tenant")
    if arguments.out is None:
        sys.stdout.buffer.write(found.content)
        sys.stdout.buffer.flush()
    else:
        arguments.out.write_bytes(found.content)
    return 0


def _rollup(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    if not roll_up(session_factory(engine)):
        return fail(_COMMAND, "another process is rolling up")
    print("the rollups are up to date")
    return 0


def _reconcile(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    sessions = session_factory(engine)
    first: date | None = getattr(arguments, "from")
    begin_s, end_s = day_bounds(first, arguments.to, zone_named("UTC"))
    found = reconcile.compare(sessions, begin_s, end_s)
    for difference in found.differences[:_SHOWN]:
        print(difference)
    if len(found.differences) > _SHOWN:
        print(f"and {len(found.differences) - _SHOWN:,} more")
    left_out = f", {found.marked:,} not rolled up yet" if found.marked else ""
    print(
        f"{found.compared:,} days of tenants compared{left_out}:"
        f" {len(found.differences):,} differences"
    )
    if not found.differences:
        return 0
    if arguments.repair:
        if not reconcile.repair(sessions, found.differences):
            return fail(_COMMAND, "another process is rolling up; what differs is marked")
        print("what differed was rolled up again")
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=_COMMAND,
        description="Usage reports, and the rollups that they are made of.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, act in (
        ("report", "write a usage report", _report),
        ("rollup", "bring the rollups up to date with the ledger", _rollup),
        ("reconcile", "compare the rollups with the ledger's rows", _reconcile),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.set_defaults(act=act)
        add_database_flags(action)
        if name == "rollup":
            continue
        action.add_argument("--from", type=_day, metavar="DAY", help="first day")
        action.add_argument("--to", type=_day, metavar="DAY", help="last day")
        if name == "reconcile":
            action.add_argument("--repair", action="store_true", help="roll up again what differs")
            continue
        action.add_argument(
            "--group-by", metavar="GROUPS", help=f"separated by commas: {', '.join(GROUPS)}"
        )
        action.add_argument("--zone", help="IANA name of the zone of days and hours; default: UTC")
        for field in ("tenant", "app", "user", "model"):
            action.add_argument(f"--{field}", help=f"only of this {field}")
        action.add_argument("--limit", type=int, help="rows in JSON and HTML; default: 100")
        action.add_argument("--offset", type=int, help="rows left out before them")
        action.add_argument("--format", choices=get_args(Format), default="json")
        action.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    return parser


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day such as 2026-01-31") from None
