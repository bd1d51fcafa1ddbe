"""``fairserve bench usage``: reports over a large ledger, from its rollups, on PostgreSQL.

The database that is named gets the schema and a generated ledger (:mod:`.usage_rows`), is rolled up, and
keeps both: the next run with as many rows finds them. Times are wall-clock, since what is measured waits
for the database; a report's is that of all its statements and of its JSON.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from typer import Option

from fairserve.benchmarks.bench.figure import BenchResult, Figure
from fairserve.benchmarks.bench.figures_command import DEFAULT_ROUNDS, say
from fairserve.benchmarks.bench.measure import MIN_ROUNDS
from fairserve.benchmarks.bench.report import table, to_plain
from fairserve.benchmarks.bench.usage_rows import CALLS_PER_RUN, FIRST_DAY, LAST_DAY, generate
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.machine import machine
from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, file_to_write
from fairserve.platform.db.engine import SessionFactory, connect, read_only, session_factory
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.schema import upgrade
from fairserve.platform.reporting.usage.fairness import Measure
from fairserve.platform.reporting.usage.reports import report
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import UsageQuery
from fairserve.scheduling.feeders.wsc_options import WscOptions

TARGET_S = 2.0
_TENANT = "tn_07"
_WEEK = {
    "from": (LAST_DAY - timedelta(days=6)).date().isoformat(),
    "to": LAST_DAY.date().isoformat(),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A report that is measured; the answer has the first 100 of its groups."""

    name: str
    what: str
    query: dict[str, Any]
    tenant_id: str | None = None


QUESTIONS = (
    Question("tenants", "by tenant", {"group_by": "tenant"}),
    Question("tenant days", "by tenant and day", {"group_by": "tenant,day"}),
    Question("app days", "by app and day, one tenant", {"group_by": "app,day"}, _TENANT),
    Question("users", "by user, one tenant", {"group_by": "user"}, _TENANT),
    Question("model hours", "by model and hour, one week", {"group_by": "model,hour", **_WEEK}),
    Question(
        "local days",
        "by app and day of Asia/Kolkata, one tenant",
        {"group_by": "app,day", "zone": "Asia/Kolkata"},
        _TENANT,
    ),
)
FIGURES = tuple(
    Figure(question.name, "s", f"a report {question.what}", TARGET_S) for question in QUESTIONS
)


app = CommandGroup()


@app.command("usage", epilog="Figures: " + ", ".join(figure.name for figure in FIGURES))
def command(
    database_url: Annotated[
        str, Option(metavar="URL", help="An empty PostgreSQL database; it is filled.")
    ],
    rows: Annotated[
        int, Option(min=1, max=1_000_000_000, metavar="N", help="Rows of the ledger.")
    ] = 10_000_000,
    out: Annotated[
        Path | None,
        Option("--json", parser=file_to_write, metavar="OUT", help="Write the figures as JSON."),
    ] = None,
    rounds: Annotated[
        int, Option(min=MIN_ROUNDS, max=1000, metavar="N", help="Rounds of each report.")
    ] = DEFAULT_ROUNDS,
) -> None:
    """Measure usage reports over a generated ledger on PostgreSQL."""
    try:
        engine = connect(database_url)
        try:
            _measure(engine, rows, out, rounds)
        finally:
            engine.dispose()
    except ValueError as error:
        raise CommandError(str(error)) from error
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise CommandError(f"the database: {' '.join(str(cause).split())}", FAILED) from error


def _measure(engine: Engine, rows: int, out: Path | None, rounds: int) -> None:
    if engine.dialect.name != "postgresql":
        raise CommandError("the ledger is generated inside PostgreSQL; name such a database")
    upgrade(engine)
    sessions = session_factory(engine)
    wanted = -(-rows // CALLS_PER_RUN) * CALLS_PER_RUN
    with sessions() as session:
        found_rows = session.scalar(select(func.count()).select_from(LedgerCall)) or 0
        empty = not found_rows and session.scalar(select(Tenant.id).limit(1)) is None
    if not empty and found_rows != wanted:
        raise CommandError(
            f"the database has another ledger, of {found_rows:,} rows; name an empty one"
        )
    if empty:
        say(f"generating {wanted:,} rows")
        with engine.begin() as connection:
            generate(connection, wanted)
    say("rolling up")
    began_s = time.monotonic()
    if not roll_up(sessions):
        raise CommandError("another process is rolling up this database", FAILED)
    rollup_s = time.monotonic() - began_s
    results = []
    for question, figure in zip(QUESTIONS, FIGURES, strict=True):
        say(f"measuring a report {question.what}")
        _time_s(sessions, question)
        values = tuple(_time_s(sessions, question) for _ in range(rounds))
        results.append(BenchResult(figure, values, {}))
    found = machine(("fairserve", "sqlalchemy", "psycopg"))
    print()
    print(table(results))
    print()
    done = f"rolled up in {rollup_s:,.0f} s, {wanted / rollup_s:,.0f} rows/s" if empty else ""
    print(
        f"{wanted:,} calls of {(LAST_DAY - FIRST_DAY).days + 1} days. {done}\nSeconds, medians of"
        f" {rounds} rounds with least and greatest; * misses its target.\n"
        f"{found['cores']} cores of {found['processor'] or found['architecture']}."
    )
    if out is not None:
        document = to_plain(found, results, rounds)
        settings = {"rows": rows, "rounds": rounds}
        document["command"] = command_line("fairserve bench usage", settings)
        document["method"] |= {"clock": "wall", "value": "median over the rounds", "rows": wanted}
        if empty:
            document["rollup_s"] = rollup_s
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _time_s(sessions: SessionFactory, question: Question) -> float:
    began_s = time.perf_counter()
    with sessions() as session:
        found = report(
            read_only(session),
            UsageQuery(**question.query),
            tenant_id=question.tenant_id,
            app_id=None,
            measure=Measure(wsc=WscOptions()),
        )
    found.model_dump_json()
    return time.perf_counter() - began_s
