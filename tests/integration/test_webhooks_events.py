"""Events are written once, with the rows of the ledger, and for subscribers only."""

import json
from dataclasses import replace
from datetime import timedelta

import databases
import pytest
from sqlalchemy import event as sql
from sqlalchemy import func, select, update

from fairserve.platform.background import retention
from fairserve.platform.background.webhooks import outbox
from fairserve.platform.background.webhooks.retention import delete_old
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent
from fairserve.platform.reporting.user_data import erasure as erasing
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.tenants.purge import purge


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


def event_types(world):
    return sorted(event.type for event in world.events)


def test_a_finished_run_has_an_event_with_its_figures(world):
    world.register()
    run = world.run(state="aborted", wasted_tokens=7, waste_cause="throttled")
    world.write(runs=[run])
    (event,) = world.events
    assert (event.type, event.tenant_id, event.user_id) == (
        "interaction.finished",
        world.tenant["id"],
        "ann",
    )
    assert event.payload["type"] == "interaction.finished"
    assert event.payload["timestamp"] == event.payload["data"]["ended_at"]
    assert event.payload["data"] == {
        "interaction_id": "run",
        "app_id": world.app["id"],
        "user": "ann",
        "state": "aborted",
        "calls": 2,
        "tokens": 30,
        "wasted_tokens": 7,
        "waste_cause": "throttled",
        "opened_at": event.payload["data"]["opened_at"],
        "ended_at": event.payload["timestamp"],
    }
    assert event.payload["timestamp"].endswith("Z")
    assert world.states() == ["pending"]


def test_rejections_of_a_minute_are_one_event(world):
    world.register()
    at = utc_now().timestamp() // 60 * 60 + 60
    rejected = [
        world.refused("late", at=at + 50, user="bob"),
        world.refused("first", at=at + 1, refusal_count=9),
        world.refused("again", at=at + 2),
        world.refused("next-minute", at=at + 61),
        world.refused("other-reason", at=at + 3, reason="contract_rpm"),
    ]
    world.write(rejected)
    world.write([world.refused("even-earlier", at=at)])
    assert len(world.events) == 3
    first = min(world.events, key=lambda event: (event.payload["timestamp"], event.id))
    assert first.payload["data"] == {
        "app_id": world.app["id"],
        "reason": "overloaded_user_limit",
        "minute": first.payload["data"]["minute"],
        "user": "ann",
        "interaction_id": "run-of-first",
        "scope": "user",
        "limit": 5,
        "count": 9,
        "window_s": 60.0,
        "retry_after_s": 12.5,
        "mid_run": False,
    }


@databases.ON_BOTH
def test_replaying_the_journal_repeats_no_event(world, caplog):
    world.register()
    runs, calls = [world.run("a"), world.run("b")], [world.refused("c")]
    world.write(calls, runs)
    assert world.deliver() == 3
    again, _ = runs
    before = world.events
    world.write(calls, runs)
    world.write(runs=[again])
    world.write(calls)
    assert [event.id for event in world.events] == [event.id for event in before]
    assert world.states() == ["delivered"] * 3
    assert world.deliver() == 0
    world.write(runs=[replace(again, ended_at=again.ended_at + 5, calls=3)])
    assert len(world.events) == 4, "a run that continued has a further event"
    assert "lost" not in caplog.text


@databases.ON_POSTGRESQL
def test_an_endpoint_gets_only_subscribed_events_of_its_tenant(world):
    world.register(events=["calls.throttled"])
    world.register(events=["interaction.finished"], key=world.other["api_key"])
    world.register(events=["interaction.finished"], enabled=False)
    other = {"tenant": world.other, "app": world.foreign_app}
    world.write(
        [world.refused("mine"), world.refused("theirs", **other), world.record("fine")],
        [world.run("mine"), world.run("theirs", **other)],
    )
    assert {(event.tenant_id, event.type) for event in world.events} == {
        (world.tenant["id"], "calls.throttled"),
        (world.other["id"], "interaction.finished"),
    }
    with world.sessions() as session:
        pairs = session.execute(
            select(WebhookEndpoint.tenant_id, WebhookEvent.tenant_id)
            .join(WebhookDelivery, WebhookDelivery.endpoint_id == WebhookEndpoint.id)
            .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        ).all()
    assert sorted(pairs) == sorted((each["id"], each["id"]) for each in (world.tenant, world.other))


def test_an_endpoint_gets_no_events_from_before_its_subscription(world):
    before = utc_now().timestamp()
    one = world.register(events=["interaction.finished"])
    world.write([world.refused("early", at=before)], [world.run("early", ended_at=before)])
    assert world.events == []
    later = world.call("PATCH", f"/v1/webhooks/{one['id']}", {"enabled": False})
    assert not later["enabled"]
    ended_at = utc_now().timestamp()
    world.call("PATCH", f"/v1/webhooks/{one['id']}", {"enabled": True})
    world.write(runs=[world.run("while-disabled", ended_at=ended_at)])
    assert world.events == []
    world.call(
        "PATCH",
        f"/v1/webhooks/{one['id']}",
        {"events": ["interaction.finished", "calls.throttled"]},
    )
    world.write([world.refused("now")], [world.run("now")])
    assert event_types(world) == ["calls.throttled", "interaction.finished"]


def test_records_older_than_the_retention_have_no_new_event(world):
    one = world.register()
    old = (utc_now() - timedelta(days=8)).timestamp()
    with world.sessions.begin() as session:
        endpoint = session.get(WebhookEndpoint, one["id"])
        endpoint.since = dict.fromkeys(endpoint.since, old - 10)
    world.write([world.refused("old", at=old)], [world.run("old", ended_at=old)])
    assert world.events == []
    world.write(runs=[world.run("young", ended_at=old + 2 * 86_400)])
    assert len(world.events) == 1


def test_events_and_rows_are_written_atomically(world, monkeypatch):
    world.register()

    def fail(*_):
        raise RuntimeError("cut off")

    monkeypatch.setattr(outbox, "bound_pending", fail)
    with pytest.raises(RuntimeError):
        world.write([world.refused("c")], [world.run()])
    assert (world.events, world.deliveries, world.rows(LedgerInteraction)) == ([], [], [])
    monkeypatch.undo()
    world.write([world.refused("c")], [world.run()])
    assert len(world.events) == len(world.deliveries) == 2


@databases.ON_BOTH
def test_a_failing_event_loses_no_row(world, monkeypatch, caplog):
    world.register()
    found = outbox.enabled_endpoints

    def with_one_that_is_gone(session, tenants):
        endpoints = found(session, tenants)
        for endpoint in next(iter(endpoints.values())):
            session.expunge(endpoint)
            endpoint.id = "wh_gone"
        return endpoints

    monkeypatch.setattr(outbox, "enabled_endpoints", with_one_that_is_gone)
    world.write([world.refused("c")], [world.run()])
    assert world.events == []
    assert len(world.rows(LedgerInteraction)) == len(world.rows(LedgerCall)) == 1
    assert "cannot write webhook events, they are lost: IntegrityError" in caplog.text


def test_without_endpoints_events_cost_one_query(world):
    world.write([world.refused("warm")], [world.run("warm")])
    statements = []

    def note(connection, cursor, statement, *_):
        if "webhook" in statement or "contracts" in statement:
            statements.append(statement)

    engine = world.sessions.kw["bind"]
    sql.listen(engine, "before_cursor_execute", note)
    world.write(
        [world.refused(f"c{n}") for n in range(50)], [world.run(f"r{n}") for n in range(50)]
    )
    sql.remove(engine, "before_cursor_execute", note)
    assert len(statements) == 1
    assert "webhook_endpoints" in statements[0]


@databases.ON_POSTGRESQL
def test_pending_deliveries_are_bounded_and_the_oldest_dropped(world, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_PENDING", 5)
    world.register()
    world.register(events=["budget.reached"])
    for number in range(8):
        world.write(runs=[world.run(f"r{number}")])
    assert world.states() == ["dead"] * 3 + ["pending"] * 5
    by_run = {event.id: event.payload["data"]["interaction_id"] for event in world.events}
    dead = {by_run[each.event_id] for each in world.deliveries if each.state == "dead"}
    assert dead == {"r0", "r1", "r2"}
    assert {each.last_error for each in world.deliveries if each.state == "dead"} == {
        outbox.OVERFLOW
    }
    world.write(runs=[world.run(f"s{number}") for number in range(7)])
    assert world.states().count("pending") == 5


def test_old_deliveries_and_their_events_are_deleted(world):
    world.register()
    world.write(runs=[world.run("a"), world.run("b")])
    world.receiver.answers.append((500, {}, b""))
    world.deliver()
    assert world.states() == ["delivered", "pending"]

    def delete(days):
        deleted = []
        while not deleted or deleted[-1]:
            with world.sessions.begin() as session:
                deleted.append(delete_old(session, utc_now() + timedelta(days=days), max_rows=1))
        return sum(deleted)

    assert delete(-1) == 0
    assert delete(1) == 4, "what nobody takes is not kept for ever either"
    assert world.events == world.deliveries == []


def test_the_server_deletes_webhook_data_by_its_retention(world, monkeypatch):
    """The place of files is away, which keeps no rows; the job fails once they are deleted."""
    monkeypatch.setattr(retention, "open_store", lambda url, sessions: 1 / 0)
    world.register()
    world.write(runs=[world.run("old")])
    world.deliver()
    old = utc_now() - timedelta(days=8)
    with world.sessions.begin() as session:
        session.execute(update(WebhookDelivery).values(settled_at=old, created_at=old))
        session.execute(update(WebhookEvent).values(created_at=old))
    world.write(runs=[world.run("new")])
    assert retention.delete_old(world.sessions, world.settings)
    with pytest.raises(ZeroDivisionError):
        retention.delete_old(world.sessions, world.settings)
    assert [event.payload["data"]["interaction_id"] for event in world.events] == ["new"]


@databases.ON_POSTGRESQL
def test_events_may_contain_any_client_text(world):
    world.register()
    for number, text in enumerate(("\x00nul", "a\nb", "😀", "x" * 300, "\ud800half", 'q"\\')):
        world.write(runs=[world.run(f"{number}{text}", user=text)])
    assert world.deliver() == 6
    assert (
        len({json.loads(each.body)["data"]["interaction_id"] for each in world.receiver.received})
        == 6
    )


def test_an_erasure_removes_the_user_from_events_without_repeating_them(world):
    agreed = {"scope": "user", "app_id": "", "user_id": "ann", "max_budget": 1}
    with world.sessions.begin() as session:
        session.add(
            Contract(
                tenant_id=world.tenant["id"],
                soft_end="warn",
                updated_at=utc_now(),
                budget_duration="1d",
                **agreed,
            )
        )
    world.register()
    calls = [world.record("a", cost=5), world.refused("b"), world.record("c", user="bob")]
    runs = [world.run("letters-to-ann"), world.run("of-bob", user="bob")]
    world.write(calls, runs)
    assert len(world.events) == 4
    principal = Principal("tenant", world.tenant["id"], None, "key_1", "sk-fs-t-x")
    with world.sessions.begin() as session:
        erasure = erasing.begin(session, world.hasher, principal, "ann")
    rows = erasing.Rewriting(world.sessions, erasure, "ann").rewrite()
    assert rows["webhook_events"] == 3
    ids = {event.id for event in world.events}
    world.write(calls, runs)
    assert {event.id for event in world.events} == ids, "the journal read again"
    world.write(runs=[world.run("letters-to-ann-2", ended_at=runs[0].ended_at)])
    assert world.deliver() == 5
    bodies = [json.loads(message.body) for message in world.receiver.received]
    assert "ann" not in json.dumps(bodies)
    assert sorted({body["data"]["user"] for body in bodies}) == sorted(["bob", erasure.pseudonym])
    assert len({message.id for message in world.receiver.received}) == 5
    assert {"of-bob"} < {body["data"].get("interaction_id") for body in bodies}


@databases.ON_POSTGRESQL
def test_a_purged_tenant_leaves_nothing(world):
    world.register()
    world.write(runs=[world.run()])
    world.call("DELETE", f"/admin/tenants/{world.tenant['id']}", key=world.management.admin_key)
    assert world.deliver() == 0, "a deleted tenant gets nothing"
    with world.sessions.begin() as session:
        assert purge(session, utc_now() + timedelta(seconds=1)) == 2
    with world.sessions() as session:
        for model in (WebhookEndpoint, WebhookEvent, WebhookDelivery):
            assert session.scalar(select(func.count()).select_from(model)) == 0
