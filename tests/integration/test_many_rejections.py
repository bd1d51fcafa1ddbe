"""Pages of many rejections are served by the intended indexes."""

import random
from datetime import timedelta

import pytest
from databases import ON_BOTH
from rejected_calls import START
from sqlalchemy import insert, text

from fairserve.platform.db.ledger import ThrottlingEvent
from fairserve.platform.tuning import events
from fairserve.platform.tuning.schemas import EventQuery

pytestmark = ON_BOTH

MANY = 20_000


@pytest.fixture(scope="module")
def drawn():
    """Return rows of many rejections, half of them of one tenant."""
    rng = random.Random(1)
    found = []
    for number in range(MANY):
        tenant = "tn_big" if number % 2 else f"tn_{number % 5}"
        found.append(
            {
                "call_id": f"call_{rng.getrandbits(64):016x}",
                "at": START + timedelta(seconds=number),
                "tenant_id": tenant,
                "app_id": f"app_{number % 10}",
                "user_id": f"user{number % 2000}",
                "interaction_id": f"run{number // 3}",
                "reason": "overloaded_user_limit",
                "mid_run": False,
            }
        )
    return found


@pytest.fixture
def many(engine, drawn):
    with engine.begin() as connection:
        for begin in range(0, MANY, 5000):
            connection.execute(insert(ThrottlingEvent), drawn[begin : begin + 5000])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE throttling_events"))


NEWEST = {
    (): "ix_throttling_events_at_call_id",
    ("tenant",): "ix_throttling_events_tenant_id_at",
    ("tenant", "app"): "ix_throttling_events_",
    ("app",): "ix_throttling_events_app_id_at",
    ("since", "until"): "ix_throttling_events_at_call_id",
}


def test_a_page_of_many_rejections_is_read_in_index_order(engine, sessions, many):
    values = {
        "tenant": "tn_big",
        "app": "app_1",
        "since": START + timedelta(hours=1),
        "until": START + timedelta(hours=4),
    }
    with sessions() as session:
        for names, index in NEWEST.items():
            query = EventQuery(limit=100, **{name: values[name] for name in names})
            asked = {"tenant_id": query.tenant, "app_id": query.app}
            page = events.page(session, query, **asked)
            assert len(page.items) == 100
            assert page.items == sorted(page.items, key=lambda item: item.at, reverse=True)
            plan = _plan(session, events.rows(query, **asked))
            if session.get_bind().dialect.name == "postgresql":  # its planner weighs selectivity
                assert "Seq Scan on throttling_events" not in plan
                index = "using ix_throttling_events_"
            assert index in plan, plan


def _plan(session, statement):
    dialect = session.get_bind().dialect
    prefix = "EXPLAIN QUERY PLAN" if dialect.name == "sqlite" else "EXPLAIN"
    compiled = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    found = session.connection().exec_driver_sql(f"{prefix} {compiled}")
    return "\n".join(str(row[-1]) for row in found)
