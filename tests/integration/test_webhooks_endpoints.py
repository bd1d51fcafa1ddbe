"""Webhooks are registered over HTTP: accepted and rejected values, and what each key may see."""

import json

import databases
import pytest
from sqlalchemy import text

from fairserve.platform.background.webhooks import outbox, service, url_checks
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEvent
from fairserve.platform.server.settings import Settings

EVENTS = ["interaction.finished"]


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


def test_an_endpoint_is_registered_changed_and_deleted(world):
    one = world.register(events=["calls.throttled", "interaction.finished"], description=" of ops ")
    secret = one.pop("secret")
    assert secret.startswith("whsec_")
    assert one | {"id": "", "created_at": ""} == {
        "id": "",
        "tenant_id": world.tenant["id"],
        "url": world.receiver.url,
        "events": ["interaction.finished", "calls.throttled"],
        "description": "of ops",
        "managed_by": None,
        "enabled": True,
        "disabled_reason": None,
        "failures": 0,
        "rests_until": None,
        "secret_version": 1,
        "secret_outdated": False,
        "previous_secret_until": None,
        "created_at": "",
    }
    path = f"/v1/webhooks/{one['id']}"
    assert world.call("GET", path) == one
    listed = world.call("GET", "/v1/webhooks")
    assert (listed["items"], listed["total"]) == ([one], 1)
    change = {"url": world.receiver.url + "/2", "events": ["budget.reached"], "enabled": False}
    changed = world.call("PATCH", path, change)
    assert changed == one | change
    assert world.call("PATCH", path, {}) == changed
    assert world.call("DELETE", path) == changed
    world.call("GET", path, status=404)
    world.call("DELETE", path, status=404)


def test_a_secret_is_shown_once_and_never_stored(world, caplog):
    body = {"url": world.receiver.url, "events": EVENTS}
    headers = {"Authorization": f"Bearer {world.tenant['api_key']}"}
    client = world.management.client
    made = client.post("/v1/webhooks", json=body, headers=headers)
    assert made.headers["cache-control"] == "no-store"
    path = f"/v1/webhooks/{made.json()['id']}"
    rotated = client.post(f"{path}/rotate", headers=headers)
    assert rotated.headers["cache-control"] == "no-store"
    assert rotated.json()["previous_secret_until"]
    secrets = [made.json()["secret"], rotated.json()["secret"]]
    assert len(set(secrets)) == 2
    world.write(runs=[world.run()])
    world.deliver()
    shown = [
        world.call("GET", path),
        world.call("GET", f"{path}/deliveries"),
        world.call("GET", "/admin/audit", key=world.management.admin_key),
    ]
    with world.sessions() as session:
        stored = [
            str(session.execute(text(f"SELECT * FROM {table}")).all())
            for table in ("webhook_endpoints", "webhook_events", "webhook_deliveries", "audit_log")
        ]
    for secret in secrets:
        for where in (json.dumps(shown), str(stored), caplog.text, str(world.receiver.received)):
            assert secret.removeprefix("whsec_")[:-8] not in where


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"url": "https://127.0.0.2.example:8443/"},
            "url: 127.0.0.2.example (port 8443) cannot be resolved",
        ),
        ({"url": "http://10.0.0.1/"}, "url: 10.0.0.1 (port 80) has an address that is not public"),
        (
            {"url": "ftp://127.0.0.1/"},
            "url: its scheme is 'ftp'; allowed: https://HOST[:PORT]/PATH or",
        ),
        ({"url": "https://a:b@127.0.0.1/"}, "url: it has a user or a password"),
    ],
)
def test_hostile_urls_are_rejected(world, body, message):
    one = world.register()
    for method, path in (("POST", "/v1/webhooks"), ("PATCH", f"/v1/webhooks/{one['id']}")):
        more = {"events": EVENTS} if method == "POST" else {}
        error = world.call(method, path, body | more, status=400)["error"]
        assert error["param"] == "url"
        assert error["message"].startswith(message)
    assert len(world.endpoints) == 1


def test_slow_name_lookups_do_not_block_all_threads(world, monkeypatch):
    monkeypatch.setattr(url_checks, "looking_up", SharedLimit(2, 1 / 2))
    body = {"url": world.receiver.url, "events": EVENTS}
    url_checks.looking_up.add(world.tenant["id"])
    world.call("POST", "/v1/webhooks", body, status=429)
    world.register(key=world.other["api_key"])
    url_checks.looking_up.add("third")
    world.call("POST", "/v1/webhooks", body, key=world.other["api_key"], status=503)
    for tenant in (world.tenant["id"], "third"):
        url_checks.looking_up.release(tenant)
    world.register()
    world.call("POST", "/v1/webhooks", body | {"url": "https://10.0.0.1/"}, status=400)
    world.register()


def test_http_and_private_networks_need_the_operators_consent(world):
    world.management.state.settings = Settings(data_dir=world.settings.db.data_dir)
    body = {"url": world.receiver.url, "events": EVENTS}
    error = world.call("POST", "/v1/webhooks", body, status=400)["error"]
    assert error["message"].startswith(
        "url: its scheme is 'http'; allowed: https://HOST[:PORT]/PATH"
    )
    body["url"] = body["url"].replace("http:", "https:")
    error = world.call("POST", "/v1/webhooks", body, status=400)["error"]
    assert "not public" in error["message"]


def test_invalid_bodies_are_rejected(world):
    for body, param in (
        ({}, "events"),
        ({"events": []}, "events"),
        ({"events": ["interaction.begun"]}, "events.0"),
        ({"events": ["webhook.test"]}, "events.0"),
        ({"events": EVENTS * 7}, "events"),
        ({"events": EVENTS, "description": "x" * 201}, "description"),
        ({"events": EVENTS, "description": "a\nb"}, "description"),
        ({"events": EVENTS, "url": "x" * 2001}, "url"),
        ({"events": EVENTS, "secret": "whsec_mine"}, "secret"),
    ):
        body = {"url": world.receiver.url} | body
        key = world.tenant["api_key"]
        world.management.rejected(key, "POST", "/v1/webhooks", body, param=param)
    assert world.endpoints == []


def test_webhooks_of_a_tenant_are_bounded(world, monkeypatch):
    monkeypatch.setattr(service, "MAX_ENDPOINTS", 2)
    world.register()
    one = world.register(enabled=False)
    body = {"url": world.receiver.url, "events": EVENTS}
    error = world.call("POST", "/v1/webhooks", body, status=409)["error"]
    assert error["code"] == "too_many_webhooks"
    world.register(key=world.other["api_key"])
    world.call("DELETE", f"/v1/webhooks/{one['id']}")
    world.register()


def test_deliveries_are_listed_newest_first_in_pages(world):
    one = world.register()
    for number in range(3):
        world.write(runs=[world.run(f"r{number}")])
    world.receiver.answers.append((500, {}, b"down"))
    world.deliver()
    path = f"/v1/webhooks/{one['id']}/deliveries"
    everything = world.call("GET", path)
    assert everything["total"] == 3
    created = [item["created_at"] for item in everything["items"]]
    assert created == sorted(created, reverse=True)
    assert world.call("GET", path, limit=1, offset=1)["items"] == everything["items"][1:2]
    (pending,) = world.call("GET", path, state="pending")["items"]
    assert pending | {"event_id": "", "created_at": "", "next_attempt_at": ""} == {
        "event_id": "",
        "type": "interaction.finished",
        "state": "pending",
        "attempts": 1,
        "next_attempt_at": "",
        "last_status": 500,
        "last_error": "500: down",
        "created_at": "",
        "delivered_at": None,
    }
    delivered = world.call("GET", path, state="delivered")["items"]
    assert {(item["next_attempt_at"], item["last_status"]) for item in delivered} == {(None, 200)}
    assert all(item["delivered_at"] for item in delivered)
    world.management.rejected(world.tenant["api_key"], "GET", path, param="state", state="lost")


def test_replays_are_rejected_at_the_bound(world, monkeypatch):
    one = world.register()
    world.write(runs=[world.run(f"r{number}") for number in range(5)])
    with world.sessions.begin() as session:
        session.execute(WebhookDelivery.__table__.update().values(state="dead"))
    monkeypatch.setattr(service, "MAX_PENDING", 3)
    monkeypatch.setattr(outbox, "MAX_PENDING", 3)
    path = f"/v1/webhooks/{one['id']}"
    assert world.call("POST", f"{path}/replay", status=202) == {"replayed": 3, "left": 2}
    (dead, _) = world.call("GET", f"{path}/deliveries", state="dead")["items"]
    for more in (f"/deliveries/{dead['event_id']}/replay", "/test"):
        error = world.call("POST", path + more, status=409)["error"]
        assert error["code"] == "too_many_pending"
    assert world.states() == ["dead"] * 2 + ["pending"] * 3


def test_operators_see_dead_deliveries_of_all_tenants(world):
    for key, tenant, app in (
        (world.tenant["api_key"], world.tenant, world.app),
        (world.other["api_key"], world.other, world.foreign_app),
    ):
        world.register(key=key)
        world.write(runs=[world.run(tenant=tenant, app=app)])
    world.receiver.by_path["/hook"] = (410, {}, b"")
    world.deliver()
    admin = world.management.admin_key
    found = world.call("GET", "/admin/webhooks/dead", key=admin)
    assert found["total"] == 2
    assert {item["tenant_id"] for item in found["items"]} == {world.tenant["id"], world.other["id"]}
    assert {item["last_error"] for item in found["items"]} == {"410:"}
    assert len(world.call("GET", "/admin/webhooks/dead", key=admin, limit=1)["items"]) == 1
    world.call("GET", "/admin/webhooks/dead", status=403)


@databases.ON_POSTGRESQL
def test_another_tenants_webhooks_do_not_exist(world):
    mine = world.register()
    world.write(runs=[world.run()])
    event_id = world.events[0].id
    theirs, path = world.other["api_key"], f"/v1/webhooks/{mine['id']}"
    before = [str(vars(row)) for row in (*world.endpoints, *world.deliveries)]
    for method, more, body in (
        ("GET", "", None),
        ("PATCH", "", {"enabled": False}),
        ("DELETE", "", None),
        ("POST", "/rotate", None),
        ("POST", "/test", None),
        ("POST", "/replay", None),
        ("GET", "/deliveries", None),
        ("POST", f"/deliveries/{event_id}/replay", None),
    ):
        hidden = world.call(method, path + more, body, key=theirs, status=404)
        missing = world.call(method, f"/v1/webhooks/wh_none{more}", body, key=theirs, status=404)
        assert hidden == missing
        world.call(method, path + more, body, key=world.app["api_key"], status=403)
        world.call(
            method,
            path + more,
            body,
            key=world.management.admin_key,
            status=404,
            tenant=world.other["id"],
        )
    assert world.call("GET", "/v1/webhooks", key=theirs)["total"] == 0
    own = world.register(key=theirs)
    mixed = f"/v1/webhooks/{own['id']}/deliveries/{event_id}/replay"
    world.call("POST", mixed, key=theirs, status=404)
    after = [str(vars(row)) for row in (*world.endpoints, *world.deliveries)]
    assert [each.split("object at")[1][20:] for each in before] == [
        each.split("object at")[1][20:] for each in after if own["id"] not in each
    ]
    admin = world.management.admin_key
    world.call("GET", path, key=admin, tenant=world.tenant["id"])
    world.call("GET", "/v1/webhooks", key=admin, status=400)
    world.call("GET", "/v1/webhooks", key=admin, status=404, tenant="tn_none")


def test_the_audit_log_omits_the_query_of_urls(world):
    one = world.register(url=world.receiver.url + "?token=hidden")
    path = f"/v1/webhooks/{one['id']}"
    world.call("PATCH", path, {"description": "new"})
    rows = [row for row in world.rows(AuditEntry) if row.target == one["id"]]
    assert [row.action for row in sorted(rows, key=lambda row: row.at)] == [
        "webhook.create",
        "webhook.change",
    ]
    assert {row.after["url"] for row in rows} == {world.receiver.url}
    assert "hidden" not in str([(row.before, row.after) for row in rows])


def test_deleting_a_webhook_deletes_its_deliveries(world):
    one = world.register()
    world.register(events=["calls.throttled"])
    world.write(runs=[world.run()])
    world.call("DELETE", f"/v1/webhooks/{one['id']}")
    assert world.deliveries == []
    assert world.deliver() == 0
    assert len(world.rows(WebhookEvent)) == 1, "the retention takes it"
