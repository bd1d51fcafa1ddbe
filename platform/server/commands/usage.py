"""``fairserve usage``: reports, reconciliation and rollups directly on the database.

Exit codes: 0 done; 1 the rollups differ from the ledger, or the database or a file is not accessible; 2
usage error. A server may be running on the same database.
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session
from typer import Option

from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, with_options
from fairserve.platform.db.engine import read_only, session_factory
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.reporting.usage import reconcile as reconciliation
from fairserve.platform.reporting.usage.formats import document
from fairserve.platform.reporting.usage.reports import reporter
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import GROUPS, Format, UsageQuery
from fairserve.platform.reporting.usage.zones import day_bounds, zone_named
from fairserve.platform.server.commands.on_database import DATABASE, opened

app = CommandGroup(help="Usage reports, and the rollups that they are made of.")
_SHOWN = 20


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no day such as 2026-01-31") from None


_First = Annotated[date | None, Option("--from", parser=_day, metavar="DAY", help="First day.")]
_Last = Annotated[date | None, Option("--to", parser=_day, metavar="DAY", help="Last day.")]


@app.command()
@with_options(*DATABASE)
def report(
    first: _First = None,
    last: _Last = None,
    group_by: Annotated[
        str | None, Option(metavar="GROUPS", help=f"Separated by commas: {', '.join(GROUPS)}.")
    ] = None,
    zone: Annotated[
        str | None,
        Option(metavar="ZONE", help="IANA name of the zone of days and hours; default: UTC."),
    ] = None,
    tenant: Annotated[
        str | None, Option(metavar="TENANT", help="Only this tenant, by name or id.")
    ] = None,
    app: Annotated[str | None, Option(metavar="APP", help="Only this app, by name or id.")] = None,
    user: Annotated[str | None, Option(metavar="ID", help="Only this user.")] = None,
    model: Annotated[str | None, Option(metavar="NAME", help="Only this model.")] = None,
    limit: Annotated[
        int | None, Option(metavar="N", help="Rows in JSON and HTML; default: 100.")
    ] = None,
    offset: Annotated[int | None, Option(metavar="N", help="Rows to skip before them.")] = None,
    format: Annotated[Format, Option(help="Format of the report.")] = "json",
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The file; default: standard output.")
    ] = None,
    **flags: Any,
) -> None:
    """Write a usage report."""
    with opened(flags) as (settings, engine):
        given = {
            "group_by": group_by,
            "from": first,
            "to": last,
            "zone": zone,
            "tenant": tenant,
            "app": app,
            "user": user,
            "model": model,
            "limit": limit,
            "offset": offset,
        }
        with session_factory(engine)() as session:
            reading = read_only(session)
            tenant = given["tenant"] = _id_of(reading, Tenant, "tn_", tenant)
            of_tenant = [] if tenant is None else [App.tenant_id == tenant]
            given["app"] = _id_of(reading, App, "app_", app, *of_tenant)
            query = UsageQuery(**{name: each for name, each in given.items() if each is not None})
            ask = reporter(reading, settings, tenant_id=query.tenant, app_id=query.app)
            found = document(query, format, ask, "app" if query.tenant else "tenant")
        if out is None:
            sys.stdout.buffer.write(found.content)
            sys.stdout.buffer.flush()
        else:
            out.write_bytes(found.content)


@app.command()
@with_options(*DATABASE)
def rollup(**flags: Any) -> None:
    """Bring the rollups up to date with the ledger."""
    with opened(flags) as (_, engine):
        if not roll_up(session_factory(engine)):
            raise CommandError("another process is rolling up", FAILED)
    print("the rollups are up to date")


@app.command()
@with_options(*DATABASE)
def reconcile(
    first: _First = None,
    last: _Last = None,
    repair: Annotated[bool, Option("--repair", help="Roll up again what differs.")] = False,
    **flags: Any,
) -> int:
    """Compare the rollups with the ledger's rows."""
    with opened(flags) as (_, engine):
        sessions = session_factory(engine)
        begin_s, end_s = day_bounds(first, last, zone_named("UTC"))
        found = reconciliation.compare(sessions, begin_s, end_s)
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
        if repair:
            if not reconciliation.repair(sessions, found.differences):
                raise CommandError("another process is rolling up; what differs is marked", FAILED)
            print("what differed was rolled up again")
        return FAILED


def _id_of(
    session: Session,
    kind: type[Tenant] | type[App],
    prefix: str,
    word: str | None,
    *conditions: ColumnElement[bool],
) -> str | None:
    """Return the id that a word is, or that of the one live row of this name. Raises CommandError."""
    if word is None or word.startswith(prefix):
        return word
    named = select(kind.id).where(kind.name == word, kind.deleted_at.is_(None), *conditions)
    ids = session.scalars(named.order_by(kind.id).limit(_SHOWN)).all()
    noun = kind.__name__.lower()
    if not ids:
        raise CommandError(f"there is no {noun} {word!r}")
    if len(ids) > 1:
        raise CommandError(f"several objects are an {noun} {word!r}: {', '.join(ids)}; name one id")
    return ids[0]
