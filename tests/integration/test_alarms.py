"""Alarms of a whole server: a tenant that a wrong limit cuts off, from its calls to who sees it."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import pytest
from processes import eventually
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from standardwebhooks import Webhook
from virtual_cluster import make_call
from webhook_world import Receiver
from whole_server import WholeServer

from fairserve.platform.background.alarms.alarm import AlarmFinding, AlarmKey
from fairserve.platform.background.alarms.open_alarms import CLEAR_S
from fairserve.platform.background.alarms.watch import AT_ONCE, AlarmWatch
from fairserve.platform.background.jobs import jobs
from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.call_state import CallState
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.monitoring.activity import BUCKET_S

HOOKS = {"webhook_allowed_networks": "127.0.0.0/8"}


@pytest.fixture
def quiet(monkeypatch):
    """Let the server's own watch evaluate nothing: a slow test has several of its samples."""

    async def idle(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(AlarmWatch, "run", idle)


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setattr(jobs, "WEBHOOKS_INTERVAL_S", 0.05)
    receiver = Receiver()
    yield receiver
    receiver.close()


def chat(server, key):
    body = {"model": "scripted", "user": "ann", "messages": [{"role": "user", "content": "hi"}]}
    return server.request("POST", "/v1/chat/completions", key, json=body).status_code


def test_a_wrong_limit_is_an_alarm_that_names_limit_and_change(tmp_path, receiver):
    with WholeServer(tmp_path / "data", **HOOKS) as server:
        tenant, app = server.new_tenant_and_app("acme")
        other, _ = server.new_tenant_and_app("other")
        hook = server.call(
            tenant["api_key"],
            "POST",
            "/v1/webhooks",
            {"url": receiver.url, "events": ["alarm.opened", "alarm.resolved"]},
        )
        for limit in (6000, 6):
            server.call(
                server.admin_key,
                "PATCH",
                f"/v1/apps/{app['id']}",
                {"contract": {"rpm_limit": limit}},
                tenant=tenant["id"],
            )
        statuses = [chat(server, app["api_key"]) for _ in range(14)]
        assert statuses.count(429) == 8

        def found(key, path, **query):
            return server.call(key, "GET", path, **query)["items"]

        eventually(lambda: found(server.admin_key, "/admin/alarms"))
        eventually(lambda: found(server.admin_key, "/admin/alarms")[0]["limit"])
        (alarm,) = found(server.admin_key, "/admin/alarms")
        assert (alarm["kind"], alarm["state"]) == ("calls_rejected", "open")
        assert (alarm["tenant"], alarm["app"]) == (tenant["id"], app["id"])
        assert alarm["reason"] == "contract_rpm"
        assert alarm["limit"] == {"scope": "app", "limit": 6, "window_s": 60.0}
        assert "8 of 14 calls are rejected" in alarm["text"]
        (difference,) = alarm["change"]["differences"]
        assert difference == {"field": "contract.rpm_limit", "before": 6000, "after": 6}
        assert "contract.rpm_limit 6,000 → 6 by " in alarm["change"]["text"]

        # The tenant sees its own, without the operator's name; others see nothing.
        (own,) = found(tenant["api_key"], "/v1/alarms")
        assert (own["id"], own["change"]["actor"]) == (alarm["id"], "an operator")
        assert found(other["api_key"], "/v1/alarms") == []
        eventually(lambda: receiver.received)
        event = Webhook(hook["secret"]).verify(
            receiver.received[0].body, receiver.received[0].headers
        )
        assert (event["type"], event["data"]["id"]) == ("alarm.opened", alarm["id"])
        metrics = server.request("GET", "/metrics", server.admin_key).text
        assert 'fairserve_alarms_open{kind="calls_rejected"} 1.0' in metrics

        path = f"/admin/alarms/{alarm['id']}/acknowledge"
        assert server.request("POST", path, tenant["api_key"]).status_code == 403
        seen = server.call(server.admin_key, "POST", path)
        assert (seen["state"], bool(seen["acknowledged_by"])) == ("acknowledged", True)
        assert server.request("POST", path, server.admin_key).status_code == 409
        assert found(server.admin_key, "/admin/alarms")[0]["state"] == "acknowledged"

    # The history survives a restart: the alarm keeps its id, time and acknowledgement.
    key = server.admin_key
    with WholeServer(tmp_path / "data", **HOOKS) as server:
        eventually(lambda: server.call(key, "GET", "/admin/alarms")["items"])
        (again,) = server.call(key, "GET", "/admin/alarms")["items"]
        for name in ("id", "opened_at", "state", "acknowledged_at", "change", "limit"):
            assert again[name] == seen[name], name


def failing(management, number=9, apps=1, tenant="tn_1"):
    """Count failed calls of apps at a server, and close their bucket."""
    monitoring, now_s = management.platform.monitoring, management.platform._clock()
    for n in range(number):
        call = make_call(f"c{n}", tenant=tenant, app=f"app_{n % apps + 1}")
        live = CallState(call, f"r{n}", "", now_s, now_s)
        monitoring.app_calls.call_accepted(live, now_s)
        monitoring.app_calls.call_ended(live, "failed", now_s)
    return now_s + BUCKET_S


@pytest.mark.usefixtures("quiet")
def test_one_process_writes_the_alarms_and_all_show_them(management):
    """The one that begins to speak continues the alarms that it shows, also without the database."""
    platform = management.platform
    later_s = failing(management)
    sources = replace(platform.alarms._sources, speaks=lambda: True)
    speaker = AlarmWatch(sources, lambda: later_s)
    follower = AlarmWatch(replace(sources, speaks=lambda: False), lambda: later_s)
    sample = management.on_loop(platform.monitoring.history.take) or Mock(models=())

    def rows():
        with platform.sessions() as session:
            return session.scalars(select(AlarmRow)).all()

    management.on_loop(follower.take, sample)
    assert (follower.current(), rows()) == ([], [])
    management.on_loop(speaker.take, sample)
    (alarm,) = speaker.current("tn_1")
    assert [row.id for row in rows()] == [alarm.alarm_id]
    management.on_loop(follower.take, sample)
    assert [each.alarm_id for each in follower.current("tn_1")] == [alarm.alarm_id]
    assert follower.current("tn_2") == []

    def away():
        raise OperationalError("", {}, Exception("away"))

    cut = Mock(side_effect=away, begin=away)
    next_one = AlarmWatch(replace(sources, sessions=cut), lambda: later_s)
    next_one._alarms.replace(follower.current())
    management.on_loop(next_one.take, sample)
    assert [each.alarm_id for each in next_one.current()] == [alarm.alarm_id]
    assert len(rows()) == 1


@pytest.mark.usefixtures("quiet")
def test_many_apps_are_evaluated_in_turns_of_the_event_loop(management):
    later_s = failing(management, number=500, apps=500)
    watch = AlarmWatch(
        replace(management.platform.alarms._sources, speaks=lambda: True), lambda: later_s
    )

    async def turns_of_others():
        evaluating = asyncio.create_task(watch.take(Mock(models=())))
        turns = 0
        while not watch._rules._usual or len(watch._rules._usual) < 500:
            await asyncio.sleep(0)
            turns += 1
        await evaluating
        return turns

    assert management.on_loop(turns_of_others) >= 500 // AT_ONCE


class AlarmProcess:
    """A process that evaluates alarms: whether it speaks, its database, and its time."""

    def __init__(self, management, now_s):
        self.management = management
        self.speaks, self.away = True, False
        self.now_s, self.wall = now_s, 1_000_000.0
        sessions = management.platform.sessions

        def session():
            if self.away:
                raise OperationalError("", {}, Exception("away"))
            return sessions()

        def begin():
            session().close()
            return sessions.begin()

        sources = replace(
            management.platform.alarms._sources,
            speaks=lambda: self.speaks,
            sessions=Mock(side_effect=session, begin=begin),
        )
        self.watch = AlarmWatch(sources, lambda: self.now_s, lambda: self.wall)

    def take(self, pass_s=0.0):
        """Evaluate a sample after some seconds; return the ids of the alarms that are shown."""
        self.now_s += pass_s
        self.wall += pass_s
        self.management.on_loop(self.watch.take, Mock(models=()))
        return [each.alarm_id for each in self.watch.current()]

    def rows(self):
        """Return the stored alarms, and whether they are resolved."""
        with self.management.platform.sessions() as session:
            return {each.id: each.resolved_at for each in session.scalars(select(AlarmRow))}


OVER_S = 60.0 + CLEAR_S
"""Time after which calls that failed are no alarm any more."""


@pytest.mark.usefixtures("quiet")
def test_an_alarm_of_the_time_without_the_database_has_both_events(webhooks_world):
    world, tenant = webhooks_world, webhooks_world.tenant["id"]
    world.register(events=["alarm.opened", "alarm.resolved"])
    process = AlarmProcess(world.management, failing(world.management, tenant=tenant))
    process.wall = utc_s()
    process.away = True
    (alarm,) = process.take()
    assert process.take(OVER_S) == process.take(CLEAR_S) == []
    process.away = False
    process.take()
    assert list(process.rows()) == [alarm]
    events = sorted((each.payload["type"], each.payload["data"]["state"]) for each in world.events)
    assert events == [("alarm.opened", "open"), ("alarm.resolved", "resolved")]


@pytest.mark.usefixtures("quiet")
def test_who_speaks_again_writes_nothing_over_the_alarms_of_another(management):
    later_s = failing(management)
    first, other = AlarmProcess(management, later_s), AlarmProcess(management, later_s)
    (alarm,) = first.take()
    first.away = True
    first.take(OVER_S)
    assert first.take(CLEAR_S) == [], "it is resolved, and this is not stored"
    first.speaks = False
    first.take()
    assert other.take() == [alarm]
    # The other opens one more; whoever speaks next continues both.
    failing(management, tenant="tn_2")
    both = other.take(BUCKET_S)
    assert len(set(both) | {alarm}) == 2
    first.speaks, first.away = True, False
    assert sorted(first.take()) == sorted(both)
    assert first.rows() == dict.fromkeys(both)


@pytest.mark.usefixtures("quiet")
def test_an_alarm_that_the_database_rejects_stops_no_other(management):
    process = AlarmProcess(management, failing(management))
    rejected = AlarmFinding(AlarmKey("worker_failing", subject="no text: \udcff"), "bad")
    rejected.facts = {"worker": "w", "reason": "", "model": "m"}
    process.watch._continues, process.watch._began_at = True, process.wall
    process.watch._alarms.update([rejected], process.wall)
    shown = process.take()
    assert len(shown) == 2
    (stored,) = process.rows()
    assert stored in shown
