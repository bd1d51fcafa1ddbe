"""Every kind of key reaches only its owner's data on every route, and secrets are shown once."""

import logging
import re
import time

import pytest
from call_records import call_record
from databases import ON_POSTGRESQL
from fastapi.routing import APIRoute
from processes import eventually
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.fleet.endpoints import HEALTH_PATHS
from fairserve.platform.reporting.exports.work import make_exports
from fairserve.platform.server.app import MANAGEMENT

pytestmark = ON_POSTGRESQL

ROUTES = [
    (method, route.path)
    for module in MANAGEMENT
    for route in module.router.routes
    if isinstance(route, APIRoute) and route.path not in HEALTH_PATHS
    for method in sorted(route.methods)
]
PROFILE = {"stages": [{"input_tokens": 1, "output_tokens": 1}]}
WEBHOOK = {"url": "https://1.1.1.1/", "events": ["calls.throttled"]}
BODIES = {
    ("POST", "/admin/tenants"): {"name": "new"},
    ("PATCH", "/admin/tenants/{tenant_id}"): {"name": "taken over"},
    ("PATCH", "/admin/tenants/{tenant_id}/keys/{key_id}"): {"name": "taken over"},
    ("PATCH", "/v1/apps/{app_id}/keys/{key_id}"): {"name": "taken over"},
    ("POST", "/v1/apps"): {"name": "new", "profile": PROFILE},
    ("PATCH", "/v1/apps/{app_id}"): {"name": "taken over"},
    ("PUT", "/admin/users/{tenant_id}/{user:path}"): {"blocked": True},
    ("PUT", "/admin/throttling"): {"system": "fcfs"},
    ("POST", "/admin/throttling/preview"): {"system": "fcfs"},
    ("PUT", "/admin/apps/{app_id}/profile"): {"mode": "pinned"},
    ("POST", "/admin/prices"): {"model": "m", "input": 1, "output": 2},
    ("POST", "/admin/cluster/workers"): {"id": "b", "url": "http://127.0.0.1:10"},
    ("PUT", "/admin/cluster/aliases/{name:path}"): {"target": "m"},
    ("POST", "/v1/webhooks"): WEBHOOK,
    ("PATCH", "/v1/webhooks/{webhook_id}"): {"url": "https://1.0.0.1/"},
}


@pytest.fixture
def two(management):
    """Return two tenants, each with an app, a run, an export, a rejection, a webhook and an event."""
    one, other = management.new_tenant("one"), management.new_tenant("other")
    worker = {"id": "a", "url": "http://127.0.0.1:9"}
    management.call(management.admin_key, "POST", "/admin/cluster/workers", worker, status=201)
    for each in (one, other):
        hook = management.call(each["api_key"], "POST", "/v1/webhooks", WEBHOOK, status=201)
        path = f"/v1/webhooks/{hook['id']}/test"
        event = management.call(each["api_key"], "POST", path, status=202)
        each["webhook_id"], each["event_id"] = hook["id"], event["event_id"]
    apps = management.new_app(one), management.new_app(other)
    for app in apps:
        export = management.call(app["api_key"], "POST", "/v1/usage/exports", status=202)
        app["export_id"] = export["id"]
        app["call_id"] = f"call_of_{app['id']}"
        run = {"id": "run", "user": "anna"}
        management.call(app["api_key"], "POST", "/v1/interactions", run, status=201)
        management.on_loop(reject_call, management.platform.monitoring.activity, app)
        with management.state.session_factory.begin() as session:
            upsert_calls(session, [rejected(app)])
    make_exports(management.state.session_factory, management.state.settings)
    eventually(lambda: len(dump(management)["open_interactions"]) == 2, "a run is not written")
    return one, apps[0], other, apps[1]


def reject_call(activity, app):
    """Record a rejected call of the app, as the pages of clients count it."""
    call = make_call("c", tenant=app["tenant_id"], app=app["id"], user="anna")
    activity.call_rejected(CallState(call, "row", "", 0.0, 0.0), "rpm_user_limit", time.monotonic())


def rejected(app):
    return call_record(
        app["call_id"],
        tenant=app["tenant_id"],
        app=app["id"],
        user="anna",
        interaction_id="run",
        outcome="refused",
        refusal_reason="user_blocked",
    )


def fill(path, tenant, app):
    return (
        path.replace("{tenant_id}", tenant["id"])
        .replace("{app_id}", app["id"])
        .replace("{key_id}", app["key"]["id"])
        .replace("{webhook_id}", tenant["webhook_id"])
        .replace("{event_id}", tenant["event_id"])
        .replace("{export_id}", app["export_id"])
        .replace("{call_id}", app["call_id"])
        .replace("{user:path}", "anna")
        .replace("{worker_id}", "a")
        .replace("{name:path}", "org/chat")
        .replace("{interaction_id:path}", "run")
        .replace("{job}", "rollup")
        .replace("{price_id}", "price_x")
        .replace("{alarm_id}", "al_x")
    )


def test_all_routes_are_covered():
    assert BODIES.keys() <= set(ROUTES)


def test_an_insufficient_key_gets_nothing(management, two):
    one, app, _, _ = two
    state = set_by_requests(management)
    for method, path in ROUTES:
        reach_nothing(management, one, app, method, path)
    after = set_by_requests(management)
    failed = [row for row in after["audit_log"] if "'key.failed'" in row]
    after["audit_log"] = [row for row in after["audit_log"] if row not in failed]
    assert after == state
    assert len(failed) == 1, "its only change is the note of the unknown key"


def reach_nothing(management, one, app, method, path):
    own = fill(path, one, app)
    assert "{" not in own
    body = BODIES.get((method, path))
    for key in (None, "", "sk-fs-a-unknown", "x" * 5000, app["api_key"] + "x", "schlüssel"):
        headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
        answer = management.client.request(method, own, json=body, headers=headers)
        assert answer.status_code == 401, (method, path, key, answer.text)
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    weak = [] if path.startswith(("/v1/usage", "/v1/throttling")) else [app["api_key"]]
    if path.startswith("/admin"):
        weak.append(one["api_key"])
    for key in weak:
        error = management.call(key, method, own, body, status=403)["error"]
        assert error["code"] == "insufficient_scope"


def test_another_tenants_app_does_not_exist(management, two):
    state = set_by_requests(management)
    for method, path in ROUTES:
        if path.startswith("/v1/apps"):
            find_no_app(management, two, method, path)
    assert set_by_requests(management) == state


def find_no_app(management, two, method, path):
    one, app, other, foreign = two
    body = BODIES.get((method, path))
    if "{app_id}" in path:
        missing = management.call(
            one["api_key"], method, fill(path, one, {**foreign, "id": "app_x"}), body, status=404
        )
        hidden = management.call(
            one["api_key"], method, fill(path, other, foreign), body, status=404
        )
        assert hidden == missing
    management.call(
        one["api_key"], method, fill(path, one, app), body, status=404, tenant=other["id"]
    )
    if "{key_id}" in path:
        mixed = path.replace("{app_id}", app["id"]).replace("{key_id}", foreign["key"]["id"])
        management.call(one["api_key"], method, mixed, body, status=404)


def test_another_owners_export_or_rejection_does_not_exist(management, two):
    state = set_by_requests(management)
    for method, path in ROUTES:
        if path.startswith(("/v1/usage/exports/", "/v1/throttling/events/")):
            find_nothing(management, two, method, path)
    assert set_by_requests(management) == state


def find_nothing(management, two, method, path):
    one, app, other, foreign = two
    none = {"export_id": "exp_x", "call_id": "call_x"}
    for key in (one["api_key"], app["api_key"]):
        missing = management.call(key, method, fill(path, one, app | none), status=404)
        assert management.call(key, method, fill(path, other, foreign), status=404) == missing
        own = fill(path, one, app)
        management.call(key, method, own, status=404, tenant=other["id"])


def test_lists_and_usage_show_only_the_own_tenant(management, two):
    one, app, other, foreign = two
    listed = management.call(one["api_key"], "GET", "/v1/apps")
    assert [item["id"] for item in listed["items"]] == [app["id"]]
    for key in (one["api_key"], app["api_key"]):
        management.call(key, "GET", "/v1/usage", status=404, app=foreign["id"])
        management.call(key, "GET", "/v1/usage", status=404, tenant=other["id"])
        management.call(key, "GET", "/v1/usage", status=400, group_by="tenant")
    sibling = management.new_app(one, "second")
    management.call(app["api_key"], "GET", "/v1/usage", status=404, app=sibling["id"])
    management.call(one["api_key"], "GET", "/v1/usage", app=sibling["id"])


def test_an_admin_acts_for_a_named_tenant(management, two):
    one, app, _, foreign = two
    named = {"tenant": one["id"]}
    error = management.call(management.admin_key, "GET", "/v1/apps", status=400)["error"]
    assert error["param"] == "tenant"
    listed = management.call(management.admin_key, "GET", "/v1/apps", **named)
    assert [item["id"] for item in listed["items"]] == [app["id"]]
    management.call(management.admin_key, "GET", f"/v1/apps/{foreign['id']}", status=404, **named)
    management.call(management.admin_key, "GET", "/v1/apps", status=404, tenant="tn_none")
    created = management.call(
        management.admin_key,
        "POST",
        "/v1/apps",
        {"name": "by admin", "profile": PROFILE},
        status=201,
        **named,
    )
    assert created["tenant_id"] == one["id"]
    assert management.call(management.admin_key, "GET", "/v1/usage", **named)["total"] == 1
    assert management.call(management.admin_key, "GET", "/admin/apps")["total"] == 3
    assert management.call(management.admin_key, "GET", "/admin/apps", **named)["total"] == 2


def set_by_requests(management):
    """Return what requests can have changed: of the alarms, which the server opens, the acknowledged."""
    rows = dump(management)
    rows["alarms"] = [row for row in rows["alarms"] if "'acknowledged_by': ''" not in row]
    return rows


def dump(management):
    """Return everything in the database as text, except the hour of a key's last use."""
    with management.state.session_factory() as session:
        tables = sorted(inspect(session.connection()).get_table_names())
        rows = {}
        for table in tables:
            found = session.execute(text(f"SELECT * FROM {table}"))  # a constant name
            rows[table] = sorted(
                str({k: v for k, v in row._mapping.items() if k != "last_used_at"}) for row in found
            )
    return rows


def test_a_key_is_shown_once_and_stored_nowhere(management, two, caplog):
    caplog.set_level(logging.DEBUG)
    one, app, other, foreign = two
    path = f"/v1/apps/{app['id']}/keys"
    extra = management.call(one["api_key"], "POST", path, status=201)
    rotated = management.call(one["api_key"], "POST", f"{path}/rotate", status=201)
    bodies = management.bodies
    management.bodies = []
    plain = [
        management.admin_key,
        *(item["api_key"] for item in (one, app, other, foreign, extra, rotated)),
    ]
    for key in plain[1:]:
        assert sum(key in body for body in bodies) == 1
    for method, route in ROUTES:
        key = management.admin_key if route.startswith("/admin") else one["api_key"]
        if route == "/metrics":  # no JSON
            headers = {"Authorization": f"Bearer {management.admin_key}"}
            management.bodies.append(management.client.get(route, headers=headers).text)
        elif method == "GET":
            query = {"user": "anna"} if route == "/v1/user-data" else {}
            management.call(key, method, fill(route, one, app), **query)
    with management.state.session_factory() as session:
        digest = management.hasher.hash(management.admin_key)
        with pytest.raises(DBAPIError) as caught:
            session.execute(text("SELECT 1 FROM nowhere WHERE key_hash = :hash"), {"hash": digest})
        logging.getLogger("test").error("%s", caught.value)
    stored = str(dump(management))
    shown = "".join(management.bodies)
    internals = repr(management.state.authenticator.__dict__) + repr(management.state.settings)
    secret = (management.state.settings.db.data_dir / "secret.key").read_text().strip()
    for key in [*plain, secret]:
        for where in (stored, shown, caplog.text, internals):
            assert key not in where
            assert key[-20:] not in where
    assert not re.search(r"sk-fs-[atp]-[\w-]{5,}", stored + shown + caplog.text)
    for digest in (management.hasher.hash(key) for key in plain):
        assert digest not in shown + caplog.text
