"""The audit log has a row for every change by an administrator, and no row reveals a secret."""

import json
import re
from datetime import UTC, datetime, timedelta

from databases import ON_POSTGRESQL
from sqlalchemy import func, select, update

from fairserve.platform.db import audit
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.webhooks import WebhookDelivery

pytestmark = ON_POSTGRESQL

PROFILE = {"stages": [{"input_tokens": 1, "output_tokens": 1}]}
CONTRACT = {"rpm_limit": 5}
WORKERS, ALIASES = "/admin/cluster/workers", "/admin/cluster/aliases"

# Ordered: later entries change what earlier ones create. Each has its body and its name in the log.
PRICE = {"model": "m", "input": 1, "output": 2, "valid_from": "2099-11-01T00:00:00Z"}
WEBHOOK = {"url": "https://1.1.1.1/", "events": ["calls.throttled"]}
HOOK = "/v1/webhooks/{webhook_id}"
CHANGES = [
    ("POST", "/admin/tenants", {"name": "new", "contract": CONTRACT}, "tenant.create"),
    ("PATCH", "/admin/tenants/{tenant_id}", {"suspended": False, "weight": 2}, "tenant.change"),
    ("POST", "/admin/tenants/{tenant_id}/keys", {"name": "ci"}, "key.create"),
    ("PATCH", "/admin/tenants/{tenant_id}/keys/{tenant_key_id}", {"name": "of ci"}, "key.change"),
    ("POST", "/admin/tenants/{tenant_id}/keys/rotate", {"grace_s": 60}, "key.rotate"),
    ("DELETE", "/admin/tenants/{tenant_id}/keys/{tenant_key_id}", None, "key.revoke"),
    ("POST", "/v1/apps", {"name": "new", "profile": PROFILE}, "app.create"),
    ("PATCH", "/v1/apps/{app_id}", {"user_contract": CONTRACT}, "app.change"),
    ("POST", "/v1/apps/{app_id}/keys", {"name": "ci"}, "key.create"),
    ("PATCH", "/v1/apps/{app_id}/keys/{key_id}", {"name": "of ci"}, "key.change"),
    ("POST", "/v1/apps/{app_id}/keys/rotate", {"grace_s": 60}, "key.rotate"),
    ("DELETE", "/v1/apps/{app_id}/keys/{key_id}", None, "key.revoke"),
    ("DELETE", "/admin/interactions/{app_id}/{interaction_id}", None, "interaction.cancel"),
    ("PUT", "/admin/apps/{app_id}/profile", {"mode": "pinned"}, "app.profile"),
    ("DELETE", "/v1/apps/{app_id}", None, "app.delete"),
    ("POST", "/v1/apps/{app_id}/restore", None, "app.restore"),
    ("PUT", "/admin/users/{tenant_id}/{user}", {"contract": CONTRACT}, "user.change"),
    ("DELETE", "/admin/users/{tenant_id}/{user}", None, "user.reset"),
    ("DELETE", "/v1/user-data", None, "user.erase"),
    ("PUT", "/admin/throttling", {"system": "fcfs"}, "throttling.change"),
    ("POST", "/admin/jobs/{job}/run", None, "job.run"),
    ("POST", "/admin/alarms/{alarm_id}/acknowledge", None, "alarm.acknowledge"),
    ("POST", WORKERS, {"id": "a", "url": "http://127.0.0.1:9"}, "worker.join"),
    ("PUT", WORKERS + "/{worker_id}", {"url": "http://127.0.0.1:8"}, "worker.change"),
    ("POST", WORKERS + "/{worker_id}/drain", None, "worker.drain"),
    ("POST", WORKERS + "/{worker_id}/undrain", None, "worker.undrain"),
    ("DELETE", WORKERS + "/{worker_id}", None, "worker.remove"),
    ("PUT", ALIASES + "/{name}", {"target": "m"}, "alias.put"),
    ("DELETE", ALIASES + "/{name}", None, "alias.remove"),
    ("POST", "/admin/prices", PRICE, "price.create"),
    ("DELETE", "/admin/prices/{price_id}", None, "price.delete"),
    ("POST", "/v1/webhooks", WEBHOOK, "webhook.create"),
    ("PATCH", HOOK, {"description": "new"}, "webhook.change"),
    ("POST", HOOK + "/rotate", None, "webhook.rotate"),
    ("POST", HOOK + "/test", None, "webhook.test"),
    ("POST", HOOK + "/deliveries/{event_id}/replay", None, "webhook.replay"),
    ("POST", HOOK + "/replay", None, "webhook.replay"),
    ("DELETE", HOOK, None, "webhook.delete"),
    ("POST", "/v1/usage/exports", None, "export.create"),
    ("DELETE", "/v1/usage/exports/{export_id}", None, "export.delete"),
    ("POST", "/admin/usage/exports", None, "export.create"),
    ("DELETE", "/admin/usage/exports/{export_id}", None, "export.delete"),
    ("DELETE", "/admin/tenants/{tenant_id}", None, "tenant.delete"),
    ("POST", "/admin/tenants/{tenant_id}/restore", None, "tenant.restore"),
    ("POST", "/admin/keys", {"name": "anna"}, "key.create"),
    ("PATCH", "/admin/keys/{admin_key_id}", {"name": "of anna"}, "key.change"),
    ("DELETE", "/admin/keys/{admin_key_id}", None, "key.revoke"),
    ("POST", "/admin/keys/rotate", {"grace_s": 60}, "key.rotate"),
]

CHANGE_NOTHING = {("POST", "/admin/throttling/preview")}
OF_CALLS = tuple(
    f"/v1/{kind}"
    for kind in (
        *("batches", "chat/", "completions", "conversations", "embeddings", "files"),
        *("interactions", "messages", "rerank", "responses"),
    )
)
"""Beginnings of the paths of app keys: calls are in the ledger, and not in the audit log."""


def test_every_changing_route_is_covered(management):
    found = {
        (method.upper(), path)
        for path, methods in management.app.openapi()["paths"].items()
        for method in methods.keys() - {"get"}
    }
    walked = {
        (method, re.sub("(tenant|admin)_key_id", "key_id", path)) for method, path, _, _ in CHANGES
    }
    of_calls = {(method, path) for method, path in found if path.startswith(OF_CALLS)}
    assert found - CHANGE_NOTHING - of_calls == walked
    assert found >= CHANGE_NOTHING


def test_every_change_has_a_row_and_no_row_has_a_secret(management):
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant)
    places = {
        "tenant_id": tenant["id"],
        "tenant_key_id": tenant["key"]["id"],
        "app_id": app["id"],
        "key_id": app["key"]["id"],
        "user": "team/zoé",
        "interaction_id": "a/run",
        "job": "rollup",
        "alarm_id": open_alarm(management),
        "worker_id": "a",
        "name": "org/chat",
    }
    run = {"id": "a/run", "user": "anna"}
    management.call(app["api_key"], "POST", "/v1/interactions", run, status=201)
    seen = count(management)
    for method, route, body, action in CHANGES:
        path = route
        for name, value in places.items():
            path = path.replace(f"{{{name}}}", value)
        query = {"tenant": tenant["id"]} if path.startswith("/v1") else {}
        if action == "user.erase":
            query["user"] = "anna"
        answer = management.client.request(
            method,
            path,
            json=body,
            params=query,
            headers={"Authorization": f"Bearer {management.admin_key}"},
        )
        assert answer.status_code < 300, (method, path, answer.text)
        management.bodies.append(answer.text)
        if action in ("price.create", "webhook.create", "export.create"):
            places[f"{action.partition('.')[0]}_id"] = answer.json()["id"]
        if path == "/admin/keys":
            places["admin_key_id"] = answer.json()["id"]
        if action == "webhook.test":
            places["event_id"] = answer.json()["event_id"]
            mark_dead(management)
        now = count(management)
        assert now > seen, (method, path)
        newest = management.call(management.admin_key, "GET", "/admin/audit", limit=now - seen)[
            "items"
        ]
        assert action in {item["action"] for item in newest}, (method, path, newest)
        assert {item["actor"] for item in newest} == {management.admin_key[:12]}
        seen = now
    log = json.dumps(management.call(management.admin_key, "GET", "/admin/audit", limit=1000))
    bodies = "".join(management.bodies)
    keys = set(re.findall(r'"(?:api_key|secret)":"([^"]+)"', bodies))
    assert len(keys) == 10 + 2
    with management.state.session_factory() as session:
        secrets = {*keys, management.admin_key, *session.scalars(select(ApiKey.key_hash))}
    for secret in secrets:
        assert secret not in log
        assert secret[-20:] not in log


def open_alarm(management):
    """Store an alarm that is open; return its id."""
    texts = dict.fromkeys(("tenant_id", "app_id", "user_id", "acknowledged_by"), "")
    row = AlarmRow(id="alarm_1", kind="overloaded", severity="warn", subject="m", **texts)
    row.facts, row.affected, row.cause, row.opened_at = {"model": "m"}, [], {}, utc_now()
    with management.state.session_factory.begin() as session:
        session.add(row)
    return "alarm_1"


def mark_dead(management):
    """Mark a delivery as dead: only one that is not pending can be sent again."""
    with management.state.session_factory.begin() as session:
        session.execute(update(WebhookDelivery).values(state="dead"))


def count(management):
    with management.state.session_factory() as session:
        return session.scalar(select(func.count(AuditEntry.id)))


def test_a_rejected_change_leaves_no_row(management):
    tenant = management.new_tenant("acme")
    seen = count(management)
    path = f"/admin/tenants/{tenant['id']}"
    bad = {"name": "new", "contract": {"max_budget": 1}}
    management.call(management.admin_key, "PATCH", path, bad, status=400)
    assert management.call(management.admin_key, "GET", path)["name"] == "acme"
    assert count(management) == seen


def test_a_row_has_the_values_before_and_after(management):
    tenant = management.new_tenant("acme")
    path = f"/admin/tenants/{tenant['id']}"
    management.call(management.admin_key, "PATCH", path, {"name": "again", "contract": CONTRACT})
    row = management.call(management.admin_key, "GET", "/admin/audit", action="tenant.change")[
        "items"
    ][0]
    assert (row["target"], row["tenant"]) == (tenant["id"], tenant["id"])
    changed = {k: (row["before"][k], v) for k, v in row["after"].items() if row["before"][k] != v}
    nothing = row["before"]["contract"]
    assert changed == {
        "name": ("acme", "again"),
        "contract": (nothing, nothing | CONTRACT),
    }


def test_the_log_is_filtered_by_its_fields(management):
    one, two = management.new_tenant("one"), management.new_tenant("two")
    app = management.new_app(one)

    def listed(**query):
        found = management.call(management.admin_key, "GET", "/admin/audit", **query)
        assert found["total"] >= len(found["items"])
        return [(item["action"], item["target"]) for item in found["items"]]

    everything = listed()
    assert everything[0] == ("app.create", app["id"])
    assert everything[-1] == ("key.create", one["key"]["id"])
    assert listed(limit=2, offset=1) == everything[1:3]
    assert listed(tenant=two["id"]) == [
        ("tenant.create", two["id"]),
        ("key.create", two["key"]["id"]),
    ]
    assert listed(action="app.create") == [("app.create", app["id"])]
    assert listed(target=one["id"]) == [("tenant.create", one["id"])]
    by_tenant = [("app.create", app["id"]), ("key.create", app["key"]["id"])]
    assert listed(actor=one["key"]["prefix"]) == listed(actor=one["key"]["id"]) == by_tenant
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    assert listed(since=later) == []
    assert listed(since=earlier) == everything
    for query in ({"since": "2026-01-01T00:00:00"}, {"action": ""}, {"who": "me"}, {"limit": 0}):
        param = next(iter(query))
        management.rejected(management.admin_key, "GET", "/admin/audit", param=param, **query)


def test_the_log_cannot_be_changed(management):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        error = management.call(management.admin_key, method, "/admin/audit", {}, status=405)[
            "error"
        ]
        assert error["code"] == "method_not_allowed"


def test_the_keys_of_a_tenant_make_a_bounded_number_of_changes_an_hour(management, monkeypatch):
    monkeypatch.setattr(audit, "MAX_CHANGES_PER_HOUR", 6)
    tenant, other = management.new_tenant("one"), management.new_tenant("other")
    app = management.new_app(tenant)
    path = f"/v1/apps/{app['id']}"
    for number in range(4):
        management.call(tenant["api_key"], "PATCH", path, {"name": f"n{number}"})
    found = management.call(tenant["api_key"], "PATCH", path, {"name": "more"}, status=429)
    assert found["error"]["code"] == "too_many_changes"
    assert management.call(tenant["api_key"], "GET", path)["name"] == "n3"
    management.new_app(other)
    management.call(management.admin_key, "PATCH", f"/admin/tenants/{tenant['id']}", {"weight": 2})
    with management.state.session_factory.begin() as session:
        session.execute(update(AuditEntry).values(at=utc_now() - timedelta(hours=1)))
    management.call(tenant["api_key"], "PATCH", path, {"name": "later"})
