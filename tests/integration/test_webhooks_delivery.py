"""Deliveries are signed, sent at least once under one id, and retried on schedule."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import databases
import pytest
import webhook_deliverer
from processes import eventually
from sqlalchemy import select
from standardwebhooks import Webhook
from until import turn

from fairserve.platform.background.webhooks import claims, delivery, sender
from fairserve.platform.background.webhooks.delivery import deliver_due
from fairserve.platform.background.webhooks.guard import UnsafeUrlError
from fairserve.platform.background.webhooks.name_lookups import NameLookups
from fairserve.platform.background.webhooks.retries import DELAYS_S, JITTER
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.operations import AuditEntry

FAILED = (500, {}, b"down")
pytestmark = databases.ON_POSTGRESQL


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


@pytest.fixture
def one(world):
    """Return an endpoint, with its signing secret."""
    return world.register()


def slots(number, failing):
    """Return slots of which one tenant may have all."""
    return claims.Slots(SharedLimit(number, 1), SharedLimit(failing, 1, least=0))


def test_a_delivered_message_verifies_with_the_standard_library(world, one):
    world.write(runs=[world.run()])
    assert world.deliver() == 1
    (message,) = world.receiver.received
    (event,) = world.events
    assert message.path == "/hook"
    assert message.headers["content-type"] == "application/json"
    assert message.headers["host"] == f"127.0.0.1:{world.receiver.port}"
    assert message.id == event.id
    # The library compares with the real time.
    assert Webhook(one["secret"]).verify(message.body, message.headers) == event.payload
    (delivery,) = world.deliveries
    assert (delivery.state, delivery.attempts, delivery.last_status) == ("delivered", 1, 200)
    assert delivery.settled_at == world.clock.time
    assert world.deliver() == 0


def test_a_delivery_is_retried_on_schedule_and_then_dead(world, one):
    world.write(runs=[world.run()])
    world.receiver.by_path["/hook"] = FAILED
    waits = []
    for attempt in range(1, 11):
        assert world.deliver() == 1, attempt
        (row,) = world.deliveries
        assert (row.attempts, row.last_status, row.last_error) == (attempt, 500, "500: down")
        if row.state == "dead":
            break
        wait = row.next_attempt_at - world.clock.time
        waits.append(wait.total_seconds())
        world.clock.time += wait - timedelta(milliseconds=1)
        assert world.deliver() == 0, "not before its time"
        world.clock.pass_s(0.001)
    assert row.state == "dead"
    assert row.settled_at == world.clock.time
    assert len(waits) == len(DELAYS_S) == 9
    for wait_s, step_s in zip(waits, DELAYS_S, strict=True):
        assert step_s <= wait_s <= step_s * (1 + JITTER)
    assert len({message.id for message in world.receiver.received}) == 1
    assert len({message.headers["webhook-timestamp"] for message in world.receiver.received}) == 10
    world.clock.pass_s(10 * 86_400)
    assert world.deliver() == 0
    dead = world.call("GET", f"/v1/webhooks/{one['id']}/deliveries", state="dead")
    assert [item["event_id"] for item in dead["items"]] == [row.event_id]


def test_a_dead_delivery_is_replayed_on_request(world, one):
    world.write(runs=[world.run("a"), world.run("b")])
    world.receiver.by_path["/hook"] = FAILED
    for _ in range(40):
        world.deliver()
        world.clock.pass_s(13 * 3600)
    assert world.states() == ["dead", "dead"]
    world.receiver.by_path.clear()
    path = f"/v1/webhooks/{one['id']}"
    event_id = world.deliveries[0].event_id
    answer = world.call("POST", f"{path}/deliveries/{event_id}/replay", status=202)
    assert answer == {"event_id": event_id}
    world.call("POST", f"{path}/deliveries/{event_id}/replay", status=409)
    assert world.deliver() == 1
    assert world.states() == ["dead", "delivered"]
    assert world.call("POST", f"{path}/replay", status=202) == {"replayed": 1, "left": 0}
    assert world.call("POST", f"{path}/replay", status=202) == {"replayed": 0, "left": 0}
    assert world.deliver() == 1
    assert world.states() == ["delivered", "delivered"]
    world.call("POST", f"{path}/deliveries/{event_id}/replay", status=202)
    assert world.deliver() == 1
    assert world.receiver.received[-1].id == event_id
    assert {row.attempts for row in world.deliveries} == {1}


def test_retry_after_is_honoured_up_to_the_next_delay(world, one):
    world.write(runs=[world.run()])
    world.receiver.answers += [
        (429, {"Retry-After": "20"}, b""),
        (503, {"Retry-After": "86400"}, b""),
    ]
    for wait_s in (20, DELAYS_S[2]):
        assert world.deliver() == 1
        (row,) = world.deliveries
        assert row.next_attempt_at == world.clock.time + timedelta(seconds=wait_s)
        world.clock.pass_s(wait_s)
    assert world.deliver() == 1
    assert world.states() == ["delivered"]


def test_status_gone_disables_the_endpoint_and_keeps_pending_deliveries(world, one):
    world.write(runs=[world.run("a")])
    world.receiver.answers.append((410, {}, b"no more"))
    world.deliver()
    assert world.states() == ["dead"]
    (endpoint,) = world.endpoints
    assert not endpoint.enabled
    shown = world.call("GET", f"/v1/webhooks/{one['id']}")
    assert (shown["enabled"], shown["disabled_reason"]) == (False, claims.GONE)
    (entry,) = [row for row in world.rows(AuditEntry) if row.action == "webhook.disable"]
    assert (entry.actor, entry.target) == ("system", one["id"])
    world.write(runs=[world.run("b")])
    assert len(world.events) == 1
    world.call("POST", f"/v1/webhooks/{one['id']}/replay", status=202)
    assert world.deliver() == 0
    enabled = world.call("PATCH", f"/v1/webhooks/{one['id']}", {"enabled": True})
    assert (enabled["enabled"], enabled["disabled_reason"]) == (True, None)
    assert world.deliver() == 1
    assert world.states() == ["delivered"]


@databases.ON_BOTH
def test_two_processes_send_each_event_once(world, one):
    world.register(url=world.receiver.url.replace("/hook", "/second"))
    world.write(runs=[world.run(f"r{number}") for number in range(60)])
    barrier = threading.Barrier(3)

    def deliver(_):
        barrier.wait()
        return world.deliver()

    with ThreadPoolExecutor(3) as threads:
        tried = list(threads.map(deliver, range(3)))
    assert sum(tried) == 120
    arrived = Counter((message.path, message.id) for message in world.receiver.received)
    assert len(arrived) == 120
    assert set(arrived.values()) == {1}
    assert set(world.states()) == {"delivered"}


def test_a_process_killed_while_sending_loses_nothing(world, one, engine):
    world.write(runs=[world.run()])
    world.receiver.hold.clear()
    process = subprocess.Popen(
        [
            sys.executable,
            Path(webhook_deliverer.__file__),
            engine.url.render_as_string(hide_password=False),
            world.settings.db.data_dir,
        ]
    )
    try:
        eventually(lambda: world.receiver.received)
        assert world.deliver() == 0, "it is on its way"
    finally:
        process.kill()
        process.wait()
    world.receiver.hold.set()
    assert world.states() == ["pending"]
    assert world.deliver() == 0, "the lease holds"
    (row,) = world.deliveries
    left = row.lease_until - world.clock()  # the process took it by the time of this machine
    world.clock.pass_s(left.total_seconds() + 1)
    assert world.deliver() == 1
    first, second = world.receiver.received
    assert (first.id, first.body) == (second.id, second.body)
    assert world.states() == ["delivered"]
    (row,) = world.deliveries
    assert row.attempts == 2


def test_a_response_after_the_lease_changes_nothing(world, one):
    world.write(runs=[world.run()])
    taken = claims.claim(
        world.sessions, world.hasher, world.clock(), timedelta(seconds=10), slots(16, 8), []
    )
    world.clock.pass_s(11)
    assert world.deliver() == 1
    late = claims.DeliveryOutcome(500, "too late")
    claims.record(world.sessions, taken[0], late, world.clock(), 10)
    (row,), (endpoint,) = world.deliveries, world.endpoints
    assert (row.state, row.last_status, row.attempts) == ("delivered", 200, 2)
    assert endpoint.failures == 0


def test_a_delivery_that_ends_soon_is_not_repeated_after_a_stop(world, one, monkeypatch):
    """As after a slice of a Celery worker, which stops while further deliveries are due."""
    monkeypatch.setattr(delivery, "ENDING_S", 60.0)
    world.write(runs=[world.run()])
    world.receiver.hold.clear()
    stopped = threading.Event()

    def stopping():
        if world.receiver.received:
            stopped.set()
        return stopped.is_set()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(world.deliver, stopping=stopping)
        assert stopped.wait(60)
        world.receiver.hold.set()
        assert working.result(60) == 1
    assert world.states() == ["delivered"]


def test_stopping_releases_deliveries_in_progress(world, one, monkeypatch):
    monkeypatch.setattr(delivery, "ENDING_S", 0.1)
    world.write(runs=[world.run()])
    world.receiver.hold.clear()
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(world.deliver, stopping=stopping.is_set)
        eventually(lambda: world.receiver.received)
        stopping.set()
        assert working.result(60) == 1
    world.receiver.hold.set()
    (row,) = world.deliveries
    assert (row.state, row.lease_until) == ("pending", None)
    assert world.deliver() == 1
    assert world.states() == ["delivered"]
    assert world.deliver(stopping=lambda: True) == 0


def test_failing_endpoints_do_not_delay_others(world):
    dead = [
        world.register(url=world.receiver.url.replace("/hook", f"/dead{number}"))
        for number in range(3)
    ]
    for number in range(3):
        world.receiver.by_path[f"/dead{number}"] = FAILED
    world.write(runs=[world.run(f"r{number}") for number in range(40)])
    world.register(key=world.other["api_key"])
    world.write(runs=[world.run("well", tenant=world.other, app=world.foreign_app)])

    def paths():
        return [message.path for message in world.receiver.received]

    world.receiver.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        delivering = pool.submit(world.deliver)
        eventually(lambda: "/hook" in paths(), "endpoints do not take turns")
        counts = Counter(paths())
        world.receiver.hold.set()
        tried = delivering.result()
    assert max(counts.values()) <= claims.PER_ENDPOINT, "until an answer came"
    assert tried < 3 * 10 + 1, "an endpoint that fails again and again rests"
    for endpoint in world.endpoints:
        if endpoint.id in {each["id"] for each in dead}:
            assert endpoint.failures >= 5
            assert endpoint.rests_until > world.clock.time
    assert world.states().count("pending") == 120
    for number in range(3):
        world.receiver.by_path.pop(f"/dead{number}")
    world.clock.pass_s(700)
    world.deliver()
    assert set(world.states()) == {"delivered"}
    assert {endpoint.failures for endpoint in world.endpoints} == {0}


@pytest.mark.parametrize("action", ["test", "replay", "url", "enable"])
def test_a_paused_endpoint_is_retried_on_request(world, one, action):
    world.receiver.by_path["/hook"] = FAILED
    world.write(runs=[world.run(f"r{number}") for number in range(7)])
    world.deliver()
    world.clock.pass_s(1)
    (endpoint,) = world.endpoints
    assert endpoint.rests_until > world.clock.time
    assert {row.attempts for row in world.deliveries} == {0, 1}
    assert world.deliver() == 0
    path = f"/v1/webhooks/{one['id']}"
    if action in ("test", "replay"):
        world.call("POST", f"{path}/{action}", status=202)
    elif action == "url":
        world.call("PATCH", path, {"url": world.receiver.url + "?2"})
    else:
        for enabled in (False, True):
            world.call("PATCH", path, {"enabled": enabled})
    assert world.deliver() >= 1


def test_endpoints_take_turns(world):
    for number in range(4):
        world.register(url=world.receiver.url.replace("/hook", f"/{number}"))
    world.write(runs=[world.run(f"r{number}") for number in range(3)])
    served = []
    for _ in range(12):
        (claimed,) = claims.claim(
            world.sessions, world.hasher, world.clock(), timedelta(hours=1), slots(1, 8), []
        )
        served.append(claimed.url)
        world.clock.pass_s(1)
    assert [len(set(served[start : start + 4])) for start in (0, 4, 8)] == [4, 4, 4]
    assert set(Counter(served).values()) == {3}


def test_a_hanging_receiver_does_not_block_others(world, monkeypatch):
    """Failing endpoints get half of the slots of a process."""
    monkeypatch.setattr(delivery, "SLOTS", 4)
    monkeypatch.setattr(delivery, "FAILING_SLOTS", 2)
    hanging = [
        world.register(url=world.receiver.url.replace("/hook", f"/hang{number}"))
        for number in range(4)
    ]
    with world.sessions.begin() as session:
        for endpoint in hanging:
            row = session.get(claims.WebhookEndpoint, endpoint["id"])
            row.failures = 1
    world.write(runs=[world.run(f"r{number}") for number in range(4)])
    taken = claims.claim(
        world.sessions, world.hasher, world.clock(), timedelta(seconds=10), slots(4, 2), []
    )
    assert len(taken) == 2
    assert len({each.endpoint_id for each in taken}) == 2
    well = world.register(key=world.other["api_key"])
    world.write(runs=[world.run("well", tenant=world.other, app=world.foreign_app)])
    with world.sessions.begin() as session:  # the failing ones that wait are before it
        session.get(claims.WebhookEndpoint, well["id"]).tried_at = world.clock()
    (more,) = claims.claim(
        world.sessions, world.hasher, world.clock(), timedelta(seconds=10), slots(2, 0), []
    )
    assert more.endpoint_id == well["id"]


@pytest.mark.parametrize("failing", [False, True])
def test_a_tenant_with_many_slow_endpoints_leaves_slots_to_others(world, failing):
    for number in range(20):
        world.register(url=world.receiver.url.replace("/hook", f"/{number}"))
    world.register(key=world.other["api_key"])
    world.write(runs=[world.run(f"r{number}") for number in range(4)])
    world.write(runs=[world.run("well", tenant=world.other, app=world.foreign_app)])
    with world.sessions.begin() as session:
        for row in session.scalars(select(claims.WebhookEndpoint)):
            row.failures = int(failing)
            row.tried_at = None if row.tenant_id == world.tenant["id"] else world.clock()
    limits = claims.Slots(*(SharedLimit(number, 1 / 2) for number in (16, 8)))
    running = []
    for _ in range(3):
        running += claims.claim(
            world.sessions, world.hasher, world.clock(), timedelta(hours=1), limits, running
        )
    taken = Counter(each.tenant for each in running)
    assert taken[world.tenant["id"]] == (4 if failing else 8)
    assert taken[world.other["id"]] == 1


def test_slow_name_lookups_of_a_tenant_leave_threads_to_others():
    looked_up, go_on = threading.Semaphore(0), threading.Event()

    class SlowGuard:
        def check(self, url):
            looked_up.release()
            assert go_on.wait(60)
            return url

    async def check():
        names = NameLookups(SlowGuard(), 4, 1 / 2)
        slow = [asyncio.create_task(names.check("slow", "a")) for _ in range(2)]
        await turn()
        with pytest.raises(UnsafeUrlError, match="too many names"):
            await names.check("slow", "b")
        slow.append(asyncio.create_task(names.check("other", "c")))
        for _ in range(3):
            assert await asyncio.to_thread(looked_up.acquire, timeout=60)
        go_on.set()
        assert await asyncio.gather(*slow) == ["a", "a", "c"]
        assert await names.check("slow", "d") == "d"
        names.close()

    asyncio.run(check())


def test_after_a_rotation_both_secrets_sign_for_a_day(world, one):
    rotated = world.call("POST", f"/v1/webhooks/{one['id']}/rotate", status=201)
    assert rotated["secret"] != one["secret"]
    assert rotated["secret_version"] == 2
    world.write(runs=[world.run("a")])
    world.deliver()
    for secret in (one["secret"], rotated["secret"]):
        Webhook(secret).verify(world.receiver.received[0].body, world.receiver.received[0].headers)
    world.clock.pass_s(86_400)
    world.write(runs=[world.run("b")])
    world.deliver()
    assert len(world.receiver.received[1].headers["webhook-signature"].split()) == 1


def test_nothing_is_sent_with_a_secret_of_a_lost_platform_key(world, one):
    world.write(runs=[world.run()])
    assert (
        deliver_due(
            world.sessions, world.settings.background, KeyHasher(b"z" * 32), now=world.clock
        )
        == 1
    )
    assert world.receiver.received == []
    (row,) = world.deliveries
    assert row.last_error == sender.UNSIGNED


def test_a_test_event_is_sent_to_its_endpoint_only(world, one):
    world.register(url=world.receiver.url.replace("/hook", "/second"))
    queued = world.call("POST", f"/v1/webhooks/{one['id']}/test", status=202)
    assert world.deliver() == 1
    (message,) = world.receiver.received
    assert (message.path, message.id) == ("/hook", queued["event_id"])
    body = json.loads(message.body)
    assert (body["type"], body["data"]) == ("webhook.test", {"webhook_id": one["id"]})
    world.call("PATCH", f"/v1/webhooks/{one['id']}", {"enabled": False})
    rejected = world.call("POST", f"/v1/webhooks/{one['id']}/test", status=409)
    assert rejected["error"]["code"] == "disabled"
