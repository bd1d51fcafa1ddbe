"""One statement finds or deletes the rows of any number of keys, by the index of the table."""

import databases
import pytest
from sqlalchemy import Table, delete, select

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.ledger import OpenInteraction
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.upsert import upsert

TABLE = OpenInteraction.__table__
assert isinstance(TABLE, Table)
KEY = list(TABLE.primary_key)
IDS = ["plain", "", 'a "quote"', "back\\slash", "umlaut ü", "{}", "[1]", "null", "1", "1.0"]


def row(tenant, app, name):
    values = {"tenant_id": tenant, "app_id": app, "id": name, "user_id": "u"}
    return {**values, "opened_at": utc_now(), "sink": None, "closing": None}


@pytest.fixture
def session(sessions):
    with sessions() as session:
        upsert(session, OpenInteraction, [row("t", "a", name) for name in IDS])
        upsert(session, OpenInteraction, [row("t", "b", name) for name in IDS])
        yield session


@databases.ON_BOTH
@pytest.mark.parametrize("number", [0, 1, 5, 3000])
def test_exactly_the_rows_of_the_keys_are_found(session, number):
    found = [("t", "a", name) for name in IDS][:number]
    absent = [("t", "c", f"{n}") for n in range(number)]
    condition = in_keys(KEY, session.get_bind().dialect.name)
    rows = session.execute(select(*KEY).where(condition), key_parameter([*found, *absent])).all()
    assert sorted(map(tuple, rows)) == sorted(found)


@databases.ON_BOTH
def test_exactly_the_rows_of_the_keys_are_deleted(session):
    gone = [("t", "b", name) for name in IDS[::2]]
    condition = in_keys(KEY, session.get_bind().dialect.name)
    session.execute(delete(TABLE).where(condition), key_parameter(gone))
    left = {tuple(each) for each in session.execute(select(*KEY))}
    assert left == {("t", app, name) for app in "ab" for name in IDS} - set(gone)


def test_sqlite_reads_the_index_and_not_the_table(session):
    condition = in_keys(KEY, "sqlite")
    for statement in (select(*KEY).where(condition), delete(TABLE).where(condition)):
        compiled = statement.compile(dialect=session.get_bind().dialect)
        plan = session.connection().exec_driver_sql(
            f"EXPLAIN QUERY PLAN {compiled}",
            tuple({**compiled.params, **key_parameter([])}[name] for name in compiled.positiontup),
        )
        steps = [step for *_, step in plan if "open_interactions" in step]
        assert steps
        assert all(step.startswith("SEARCH") for step in steps), steps
