"""A budget limit has one event a period, when the spending reaches it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import databases
import pytest
from sqlalchemy import delete
from sqlalchemy import event as sql

from fairserve.platform.background.webhooks import budgets
from fairserve.platform.base.money import NANO
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.reporting.usage import spending
from fairserve.platform.reporting.usage.retention import raw_rows_from
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.spending import Spender, spent_in_period


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


def set_contract(world, scope, app="", user="", **limits):
    with world.sessions.begin() as session:
        session.merge(
            Contract(
                tenant_id=world.tenant["id"],
                scope=scope,
                app_id=app,
                user_id=user,
                soft_end="warn",
                updated_at=utc_now(),
                **{"budget_duration": "1d"} | limits,
            )
        )


def published(world):
    return sorted(
        (data["scope"], data["app_id"], data["user"], data["end"], data["limit"])
        for data in (event.payload["data"] for event in world.events)
        if "end" in data
    )


def test_a_soft_limit_has_one_event_when_reached(world):
    set_contract(world, "tenant", soft_budget=5 * NANO, max_budget=8 * NANO)
    world.register(events=["budget.reached"])
    world.write([world.record("a", cost=3 * NANO)])
    assert published(world) == []
    crossing = world.record("b", cost=2 * NANO)
    world.write([crossing])
    assert published(world) == [("tenant", None, None, "soft", 5.0)]
    (event,) = world.events
    begin = world.began.replace(hour=0, minute=0, second=0, microsecond=0)
    assert event.payload["data"] == {
        "scope": "tenant",
        "app_id": None,
        "user": None,
        "end": "soft",
        "limit": 5.0,
        "spent": 5.0,
        "currency": "USD",
        "budget_duration": "1d",
        "period_begin": begin.isoformat().replace("+00:00", "Z"),
        "period_end": (begin + timedelta(days=1)).isoformat().replace("+00:00", "Z"),
    }
    assert event.user_id == ""
    world.write([crossing])
    world.write([world.record("c", cost=1 * NANO)])
    assert len(world.events) == 1
    world.write([world.record("d", cost=2 * NANO)])
    assert [each[3] for each in published(world)] == ["hard", "soft"]
    world.write([crossing, world.record("e", cost=2 * NANO)])
    assert len(world.events) == 2


def test_shares_of_a_hard_limit_have_events_for_those_who_want_them(world, monkeypatch):
    sums = []
    ask = budgets.spent_in_period
    monkeypatch.setattr(budgets, "spent_in_period", lambda *given: sums.append(1) or ask(*given))
    set_contract(world, "tenant", soft_budget=5 * NANO, max_budget=8 * NANO)
    one = world.register(events=["budget.share"])

    def shares():
        return sorted(event.payload["data"].get("share", 0) for event in world.events)

    world.write([world.record("a", cost=4 * NANO - 1)])
    assert shares() == []
    world.write([world.record("b", cost=1)])
    assert shares() == [0.5]
    (event,) = world.events
    assert (event.type, event.payload["data"]["limit"]) == ("budget.share", 8.0)
    world.write([world.record("c", cost=3 * NANO)])
    assert shares() == [0.5, 0.8]
    asked = len(sums)
    world.write([world.record("d", cost=3 * NANO), world.refused("e", reason="contract_budget")])
    assert shares() == [0.5, 0.8], "the limits themselves are events of another type"
    assert len(sums) == asked, "nothing is left to look for"
    path = f"/v1/webhooks/{one['id']}"
    world.call("PATCH", path, {"events": ["budget.reached", "budget.share"]})
    world.write([world.record("f", cost=1)])
    assert published(world) == [
        ("tenant", None, None, "hard", 8.0),
        ("tenant", None, None, "soft", 5.0),
    ]


def test_a_replay_is_not_counted_twice(world):
    set_contract(world, "tenant", soft_budget=5 * NANO)
    world.register(events=["budget.reached"])
    call = world.record("a", cost=3 * NANO)
    for _ in range(4):
        world.write([call])
    assert published(world) == []


def test_each_owner_has_its_own_event(world):
    app = world.app["id"]
    second = world.management.new_app(world.tenant, "second")
    set_contract(world, "tenant", max_budget=20 * NANO)
    set_contract(world, "app", app, soft_budget=6 * NANO)
    set_contract(world, "app_user", app, soft_budget=4 * NANO)
    set_contract(world, "user", user="bob", soft_budget=7 * NANO)
    world.register(events=["budget.reached"])
    world.write(
        [
            world.record("a1", cost=3 * NANO),
            world.record("b1", cost=2 * NANO, user="bob"),
            world.record("b2", cost=4 * NANO, user="bob", app=second),
            world.record("f1", cost=99 * NANO, tenant=world.other, app=world.foreign_app),
        ]
    )
    assert published(world) == []
    world.write([world.record("a2", cost=1 * NANO)])
    assert published(world) == [
        ("app", app, None, "soft", 6.0),
        ("app_user", app, "ann", "soft", 4.0),
    ]
    world.write([world.record("b3", cost=1 * NANO, user="bob", app=second)])
    assert published(world)[-1] == ("user", None, "bob", "soft", 7.0)
    assert {event.user_id for event in world.events} == {"", "ann", "bob"}
    world.write([world.record("a3", cost=9 * NANO)])
    assert ("tenant", None, None, "hard", 20.0) in published(world)
    assert len(published(world)) == 4


@pytest.mark.parametrize("scope", ["tenant", "app", "app_user", "user"])
def test_a_rejection_by_a_spent_budget_has_an_event(world, scope):
    app = world.app["id"] if scope.startswith("app") else ""
    set_contract(
        world,
        scope,
        app,
        "ann" if scope == "user" else "",
        max_budget=5 * NANO,
        soft_budget=1 * NANO,
    )
    world.register(events=["budget.reached"])
    scope_fields = {"refusal_scope": "user" if scope == "app_user" else scope}
    world.write([world.refused("a", reason="contract_budget_held", **scope_fields)])
    assert published(world) == []
    world.write([world.refused("b", reason="contract_budget", **scope_fields)])
    assert [(each[0], each[3]) for each in published(world)] == [(scope, "hard")]
    world.write([world.refused("c", reason="contract_soft_budget", **scope_fields)])
    assert [(each[0], each[3]) for each in published(world)] == [(scope, "hard"), (scope, "soft")]


def test_past_periods_have_no_event(world):
    set_contract(world, "tenant", soft_budget=1 * NANO, budget_duration="1h")
    world.register(events=["budget.reached"])
    now = utc_now().timestamp()
    call = world.record("a", at=now - 7200, cost=2 * NANO)
    world.write([replace(call, ended_at=now)])
    assert published(world) == []
    world.write([world.record("b", cost=2 * NANO)])
    assert len(published(world)) == 1


def test_a_raised_limit_has_a_new_event(world):
    set_contract(world, "tenant", soft_budget=1 * NANO)
    world.register(events=["budget.reached"])
    world.write([world.record("a", cost=2 * NANO)])
    set_contract(world, "tenant", soft_budget=3 * NANO)
    world.write([world.record("b", cost=1 * NANO)])
    assert [each[4] for each in published(world)] == [1.0, 3.0]


def test_sums_are_queried_rarely(world, monkeypatch):
    set_contract(world, "tenant", soft_budget=100 * NANO)
    world.register(events=["budget.reached"])
    sums = []
    found = budgets.spent_in_period

    def counted(*arguments):
        sums.append(arguments)
        return found(*arguments)

    monkeypatch.setattr(budgets, "spent_in_period", counted)
    for number in range(20):
        world.write([world.record(f"c{number}", cost=1 * NANO)])
    assert len(sums) == 1, "the first time"
    # Rows that another server writes are seen at most a minute later.
    with world.sessions.begin() as session:
        upsert_calls(session, [world.record("elsewhere", cost=90 * NANO)])
    watch = world.platform.storage.rows._outbox._budgets
    watch._monotonic_s = lambda monotonic_s=watch._monotonic_s: monotonic_s() + 61
    world.write([world.record("last", cost=1 * NANO)])
    assert len(sums) == 2
    assert len(published(world)) == 1
    world.write([world.record("after", cost=1 * NANO)])
    assert len(sums) == 2, "reached limits are not summed any more"


def test_tenants_without_a_subscription_cost_no_query(world):
    set_contract(world, "tenant", soft_budget=1 * NANO)
    world.register(events=["interaction.finished"])
    statements = []

    def note(connection, cursor, statement, *_):
        statements.append(statement)

    engine = world.sessions.kw["bind"]
    sql.listen(engine, "before_cursor_execute", note)
    world.write([world.record("a", cost=2 * NANO)])
    sql.remove(engine, "before_cursor_execute", note)
    assert not [each for each in statements if "contracts" in each]
    assert published(world) == []


@databases.ON_POSTGRESQL
@pytest.mark.parametrize("rolled_up", ["nothing", "everything", "some", "raw rows are gone"])
def test_spending_equals_the_sum_of_raw_rows(world, rolled_up, monkeypatch):
    """Days and quarter hours come from rollups, the rest from raw rows; each call counts once."""
    month = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    second = world.management.new_app(world.tenant, "second")
    calls = []
    for number in range(42):
        app, user = (world.app, second)[number % 2], ("ann", "bob", "carl")[number % 3]
        at = month + number * 6.3 * 3600 - 86_400
        calls.append(world.record(f"c{number}", app=app, user=user, at=at, cost=1 << number % 20))

    def spent(spender, begin, end):
        return sum(
            call.cost
            for call in calls
            if begin <= call.accepted_at < end
            and spender.app in ("", call.app)
            and spender.user in ("", call.user)
        )

    world.write(calls if rolled_up != "some" else calls[:30])
    if rolled_up != "nothing":
        assert roll_up(world.sessions)
    if rolled_up == "some":
        world.write(calls[30:] + calls[:3] + calls[12:24:5])
    if rolled_up == "raw rows are gone":
        with world.sessions.begin() as session:
            gone = raw_rows_from(session, datetime(2026, 4, 6, tzinfo=UTC))
            session.execute(delete(LedgerCall).where(LedgerCall.accepted_at < gone))
    tenant, app = world.tenant["id"], world.app["id"]
    for spender in (
        Spender(tenant),
        Spender(tenant, app),
        Spender(tenant, "", "ann"),
        Spender(tenant, app, "bob"),
    ):
        for begin, end in (
            (month, month + 30 * 86_400),
            (month + 86_400, month + 2 * 86_400),
            (month + 18 * 3600, month + 24 * 3600),
        ):
            with world.sessions() as session:
                assert spent_in_period(session, spender, begin, end) == spent(spender, begin, end)
    if rolled_up == "nothing":
        monkeypatch.setattr(spending, "MAX_MARKS", 5)
        with world.sessions() as session:
            assert spent_in_period(session, Spender(tenant), month, month + 30 * 86_400) is None
