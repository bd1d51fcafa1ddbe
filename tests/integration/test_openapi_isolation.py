"""A tenant's keys reach nothing of another tenant on any route, with the other's ids in every place.

The routes are those that the server describes; a new one fails until the test can fill it. No data
of the other tenant is revealed or changed.
"""

import itertools
import json
from pathlib import Path
from unittest import mock

import pytest
from processes import eventually
from server_client import PROFILE
from sqlalchemy import select
from whole_server import WholeServer

from fairserve.platform.background.jobs import jobs
from fairserve.platform.background.webhooks import delivery
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.models import metadata
from fairserve.platform.fleet.endpoints import HEALTH_PATHS
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings
from fairserve.platform.tenancy.settings import TenancySettings

OPENAPI = create_app(Settings(data_dir=Path("unused")), None).openapi()
OPERATIONS = sorted(
    [
        (method.upper(), path)
        for path, methods in OPENAPI["paths"].items()
        for method in methods
        if path not in HEALTH_PATHS
    ],
    key=lambda operation: operation[0] != "GET",
)
"""Methods in order: reading first, because a write under foreign ids creates an own object."""
USER = "alma@example.org"
HOOK = {"url": "http://127.0.0.1:9/", "events": ["calls.throttled"]}
"""URL at which no server listens."""
SAID = "almas-secret"


def node(text):
    return {"id": "one", "messages": [{"role": "user", "content": text}], "agent": "almas-agent"}


OF_SHARED = {
    "model": "scripted",
    "worker_id": "w1",
    "name": "an-alias",
    "price_id": "price_1",
    "job": "rollup",
    "limit": 20,
    "stream": "false",
    "offset": 0,
    "state": ["all", "dead"],
    "sort": "name",
    "query": "a",
    "clients": 5,
    "buckets": 3,
    "kind": "interactions",
    "format": ["svg", "json", "csv"],
    "zone": "UTC",
    "from": "2020-01-01",
    "to": "2100-01-01",
    "since": "2020-01-01T00:00:00Z",
    "until": "2100-01-01T00:00:00Z",
    "scope": "user",
    "each_user": "true",
    "rpm_limit": 1,
    "tpm_limit": 1,
    "max_parallel_requests": 1,
    "max_budget": 1,
    "budget_duration": "1d",
    "mid_run": "false",
    "group_by": "app,user,day",
    "blocked": "true",
    "deleted": "true",
    "force": "true",
    "reason": "user_blocked",
    "action": "user.change",
    "purpose": "batch",
    "order": "desc",
}
"""Values of parameters that identify no tenant."""


OF_THE_SERVER = ("last_used_at", "lease_until")
"""Columns that the server itself changes: the use of a key, and the lease of what it runs."""


class Alma:
    """A tenant with one object of every kind, and all texts that identify them."""

    def __init__(self, server):
        self.server = server
        self.tenant, self.app = server.new_tenant_and_app("almas")
        self.tenant_key, self.app_key = self.tenant["api_key"], self.app["api_key"]
        admin = server.admin_key
        path = f"/admin/users/{self.tenant['id']}/{USER}"
        server.call(admin, "PUT", path, {"blocked": True})
        asked = {"model": "scripted", "user": USER, "messages": [{"role": "user", "content": "x"}]}
        rejected = {"X-Interaction-Id": "almas-refused-run"}
        answer = server.request(
            "POST", "/v1/chat/completions", self.app_key, json=asked, headers=rejected
        )
        assert answer.status_code == 403, answer.text
        server.call(admin, "PUT", path, {"weight": 2.0, "contract": {"rpm_limit": 900}})
        self.sent = {
            "X-Interaction-Id": "almas-live-run",
            "X-Call-Id": "almas-call",
            "X-Agent": "almas-agent",
            "Idempotency-Key": "almas-idempotency-key",
        }
        answers = [
            server.chat(self.app_key, f"say {SAID}-live", user=USER, headers=self.sent),
            server.chat(
                self.app_key,
                f"say {SAID}-ended",
                user=USER,
                headers={"X-Interaction-Id": "almas-ended-run", "X-Interaction-Final": "true"},
            ),
        ]
        for run, text in (
            ("almas-program", f"say {SAID}-program"),
            ("almas-live-program", "hold"),
        ):
            body = {"id": run, "user": USER, "model": "scripted", "nodes": [node(text)]}
            server.call(self.app_key, "POST", "/v1/interactions", body)
        self.hook = server.call(self.tenant_key, "POST", "/v1/webhooks", HOOK)
        event = server.call(self.tenant_key, "POST", f"/v1/webhooks/{self.hook['id']}/test")
        talk = {"items": [{"role": "user", "content": f"say {SAID}-talk"}], "metadata": {"a": "b"}}
        self.conversation = server.call(self.app_key, "POST", "/v1/conversations", talk)["id"]
        path = f"/v1/conversations/{self.conversation}/items"
        self.item = server.call(self.app_key, "GET", path)["first_id"]
        body = {"model": "scripted", "input": f"say {SAID}-response", "user": USER}
        run = {"X-Interaction-Id": "almas-ended-response", "X-Interaction-Final": "true"}
        answer = server.request("POST", "/v1/responses", self.app_key, json=body, headers=run)
        self.response = answer.json()
        path = f"/v1/responses/{self.response['id']}/input_items"
        self.input_item = server.call(self.app_key, "GET", path)["first_id"]
        eventually(self._settled, self._runs)
        self.batch = self._batch()
        eventually(self._dead_delivery)
        erased = server.call(
            self.tenant_key, "DELETE", "/v1/user-data", user="almas-erased@example.org"
        )
        assert server.platform.ledger.flush(10)
        assert roll_up(server.platform.sessions)
        asked = {"kind": "interactions", "app": self.app["id"]}
        export = server.call(self.tenant_key, "POST", "/v1/usage/exports", **asked)
        self.export_id = export["id"]
        eventually(self._exported, "it was not made")
        with server.platform.sessions.begin() as session:
            session.add(
                AlarmRow(
                    id="almas-alarm",
                    kind="calls_failing",
                    severity="bad",
                    tenant_id=self.tenant["id"],
                    app_id=self.app["id"],
                    user_id="",
                    subject="",
                    facts={"failed": 6, "calls": 7},
                    affected=[],
                    cause={},
                    opened_at=utc_now(),
                    acknowledged_by="",
                )
            )
        self.runs = ["almas-live-run", "almas-ended-run", "almas-program", "almas-live-program"]
        self.places = {
            "tenant_id": [self.tenant["id"]],
            "tenant": [self.tenant["id"]],
            "app_id": [self.app["id"]],
            "app": [self.app["id"]],
            "key_id": [self.app["key"]["id"], self.tenant["key"]["id"]],
            "user": [USER, erased["pseudonym"]],
            "target": [USER],
            "actor": [self.tenant["key"]["id"]],
            "interaction_id": self.runs,
            "webhook_id": [self.hook["id"]],
            "event_id": [event["event_id"]],
            "alarm_id": ["almas-alarm"],
            "export_id": [self.export_id],
            "response_id": [self.response["id"]],
            "conversation_id": [self.conversation],
            "item_id": [self.item],
            "file_id": [self.batch["input_file_id"], self.batch["output_file_id"]],
            "batch_id": [self.batch["id"]],
            "after": [self.batch["input_file_id"], self.batch["id"]],
            "call_id": [row["call_id"] for row in self.rows()["throttling_events"]],
        }
        self.after = {
            "/v1/responses/{response_id}/input_items": [self.input_item],
            "/v1/conversations/{conversation_id}/items": [self.item],
        }
        """Values of ``after`` by route; other routes take those of ``places``."""
        assert self.places["call_id"]
        self.hidden = {
            self.tenant["name"],
            self.app["name"],
            self.tenant_key,
            self.app_key,
            self.tenant["key"]["prefix"],
            self.app["key"]["prefix"],
            self.hook["secret"],
            f"{SAID}-ended",
            f"{SAID}-program",
            f"{SAID}-response",
            f"{SAID}-talk",
            f"{SAID}-batch",
            *(answer.json()["id"] for answer in answers if "almas-call" not in answer.text),
            *(
                row["call_id"]
                for row in self.rows()["ledger_calls"]
                if row["call_id"] not in self.response["id"]
            ),
        }
        """Return a text that no other request sends."""
        self.marks = {
            *self.hidden,
            *itertools.chain.from_iterable(self.places.values()),
            *self.sent.values(),
            f"{SAID}-live",
        }

    def _batch(self):
        """Return a batch that has ended."""
        asked = {
            "model": "scripted",
            "messages": [{"role": "user", "content": f"say {SAID}-batch"}],
        }
        path = "/v1/chat/completions"
        line = {"custom_id": "almas-line", "method": "POST", "url": path, "body": asked}
        file = self.server.request(
            "POST",
            "/v1/files",
            self.app_key,
            data={"purpose": "batch"},
            files={"file": ("almas-calls.jsonl", json.dumps(line).encode())},
        ).json()
        body = {"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"}
        batch = self.server.call(self.app_key, "POST", "/v1/batches", body)

        def ended():
            found = self.server.call(self.app_key, "GET", f"/v1/batches/{batch['id']}")
            return found if found["status"] == "completed" else None

        return eventually(ended)

    def _runs(self):
        runs = self.server.call(self.app_key, "GET", "/v1/interactions")["items"]
        return {run["id"]: run["state"] for run in runs}

    def _exported(self):
        path = f"/v1/usage/exports/{self.export_id}"
        return self.server.call(self.tenant_key, "GET", path)["state"] == "ready"

    def _settled(self):
        return self._runs() == {
            "almas-live-run": "under_way",
            "almas-live-program": "under_way",
            "almas-ended-run": "complete",
            "almas-program": "complete",
            "almas-ended-response": "complete",
        } and any("hold" in str(body) for body in self.server.worker.bodies)

    def _dead_delivery(self):
        path = f"/v1/webhooks/{self.hook['id']}/deliveries"
        return self.server.call(self.tenant_key, "GET", path, state="dead")["items"]

    def rows(self):
        """Return all its rows."""
        own = {self.tenant["id"], self.app["id"], self.hook["id"]}
        found = {}
        with self.server.platform.sessions() as session:
            for table in metadata.sorted_tables:
                names = {"tenant_id", "app_id", "endpoint_id"} | (
                    {"id"} if table.name in ("tenants", "apps") else set()
                )
                statement = select(table).order_by(*table.primary_key)
                rows = [row._asdict() for row in session.execute(statement)]
                found[table.name] = [
                    {name: value for name, value in row.items() if name not in OF_THE_SERVER}
                    for row in rows
                    if own & {row.get(name) for name in names}
                ]
        return found

    def state(self):
        """Return its rows, and values that are not in the database yet.

        An alarm is over and resolved by itself, so of it only the rest is here.
        """
        assert self.server.platform.ledger.flush(10)
        live = self.server.call(self.app_key, "GET", "/v1/interactions")["items"]
        rows = self.rows()
        rows["alarms"] = [row | {"facts": None, "resolved_at": None} for row in rows["alarms"]]
        return rows | {"live": sorted(live, key=lambda run: run["id"])}


class World:
    def __init__(self, server):
        self.server = server
        self.alma = Alma(server)
        self.tenant, self.app = server.new_tenant_and_app("berts")
        self.keys = {"tenant": self.tenant["api_key"], "app": self.app["api_key"]}
        self.own = set()
        """Texts of the other tenant that were written under these keys, and so may be read with them."""


@pytest.fixture(scope="module")
def world(new_postgres_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "data"
    options = {
        "database_url": new_postgres_url(),
        "secret_key": "x" * 32,
        "webhook_allowed_networks": "127.0.0.0/8",
    }
    not_learned = property(lambda settings: None)  # it would change the row of the app
    with (
        mock.patch.object(TenancySettings, "learning_options", not_learned),
        mock.patch.object(delivery, "MAX_ATTEMPTS", 1),
        mock.patch.object(jobs, "WEBHOOKS_INTERVAL_S", 0.05),
        WholeServer(folder, **options) as server,
    ):
        world = World(server)
        yield world
        server.call(world.alma.app_key, "DELETE", "/v1/interactions/almas-live-program")


def bodies(alma):
    """Return bodies for a route, with the other tenant's ids if it names any."""
    run = {"id": "almas-live-run", "user": USER}
    prompt = {"model": "scripted", "user": USER, "max_tokens": 5}
    metadata_of_run = {"interaction_id": "almas-live-run", "parent_ids": ["almas-call"]}
    # The same request as the one whose answer is stored for the other tenant under this key.
    same = {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"say {SAID}-live"}],
        "user": USER,
    }
    counted = {"model": "scripted", "messages": same["messages"]}
    message = counted | {"max_tokens": 5, "metadata": {"user_id": USER}}
    named = {"name": "taken-over"}
    asked = {"model": "scripted", "input": "say x", "user": USER}
    repeated = {"id": alma.response["output"][0]["id"], "role": "assistant", "content": "x"}
    return {
        ("POST", "/v1/chat/completions"): [same, same | {"metadata": metadata_of_run}],
        ("POST", "/v1/completions"): [prompt | {"prompt": "x", "metadata": metadata_of_run}],
        ("POST", "/v1/messages"): [message],
        ("POST", "/v1/messages/count_tokens"): [counted],
        ("POST", "/v1/responses"): [
            asked,
            asked | {"previous_response_id": alma.response["id"]},
            asked | {"conversation": alma.conversation},
            asked | {"input": [{"type": "item_reference", "id": alma.response["output"][0]["id"]}]},
            asked | {"input": [{"type": "item_reference", "id": alma.item}], "background": True},
            asked | {"input": [repeated, {"role": "user", "content": "say x"}]},
        ],
        ("POST", "/v1/responses/{response_id}/cancel"): [None],
        ("POST", "/v1/conversations"): [{"metadata": {"a": "b"}}],
        ("POST", "/v1/conversations/{conversation_id}"): [{"metadata": {"a": "c"}}],
        ("POST", "/v1/conversations/{conversation_id}/items"): [
            {"items": [{"role": "user", "content": "more"}]}
        ],
        ("POST", "/v1/embeddings"): [
            {"model": "scripted", "input": "x", "user": USER, "metadata": metadata_of_run}
        ],
        ("POST", "/v1/rerank"): [
            {"model": "scripted", "query": "x", "documents": ["y"], "metadata": metadata_of_run}
        ],
        ("POST", "/v1/interactions"): [
            run,
            {"id": "almas-program", "model": "scripted", "nodes": [node("say hello")]},
        ],
        ("POST", "/v1/apps"): [{"name": "berts-second", "profile": PROFILE}],
        ("PATCH", "/v1/apps/{app_id}"): [named],
        ("POST", "/v1/apps/{app_id}/keys"): [None, named],
        ("PATCH", "/v1/apps/{app_id}/keys/{key_id}"): [named],
        ("POST", "/v1/apps/{app_id}/keys/rotate"): [None],
        ("POST", "/admin/tenants"): [named],
        ("PATCH", "/admin/tenants/{tenant_id}"): [named],
        ("POST", "/admin/tenants/{tenant_id}/keys"): [named],
        ("PATCH", "/admin/tenants/{tenant_id}/keys/{key_id}"): [named],
        ("POST", "/admin/tenants/{tenant_id}/keys/rotate"): [None],
        ("POST", "/admin/keys"): [named],
        ("PATCH", "/admin/keys/{key_id}"): [named],
        ("POST", "/admin/keys/rotate"): [None],
        ("PUT", "/admin/users/{tenant_id}/{user}"): [{"blocked": True}],
        ("PUT", "/admin/throttling"): [{"system": "fcfs"}],
        ("POST", "/admin/throttling/preview"): [{"system": "fcfs"}],
        ("PUT", "/admin/apps/{app_id}/profile"): [{"mode": "pinned", "profile": PROFILE}],
        ("POST", "/admin/prices"): [
            {"model": "scripted", "input_tokens": "1", "cached_tokens": "1", "output_tokens": "1"}
        ],
        ("POST", "/admin/cluster/workers"): [{"id": "w9", "url": "http://127.0.0.1:9"}],
        ("PUT", "/admin/cluster/workers/{worker_id}"): [{"url": "http://127.0.0.1:9"}],
        ("POST", "/admin/cluster/workers/{worker_id}/drain"): [None],
        ("POST", "/admin/cluster/workers/{worker_id}/undrain"): [None],
        ("POST", "/v1/files"): [{"purpose": "batch"}],
        ("POST", "/v1/batches"): [
            {
                "input_file_id": file_id,
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
            for file_id in alma.places["file_id"]
        ],
        ("POST", "/v1/batches/{batch_id}/cancel"): [None],
        ("POST", "/v1/webhooks"): [HOOK],
        ("PATCH", "/v1/webhooks/{webhook_id}"): [HOOK, {"enabled": False}],
        ("PUT", "/admin/cluster/aliases/{name}"): [{"targets": {"scripted": 1}}],
    }


def requests(alma, method, path):
    """Return all ways to name the other tenant on a route; fail for unknown parameters."""
    operation = OPENAPI["paths"][path][method.lower()]
    parameters = operation.get("parameters", [])
    by_name = alma.places | {
        name: value if isinstance(value, list) else [value] for name, value in OF_SHARED.items()
    }
    if path in alma.after:
        by_name["after"] = alma.after[path]
    unknown = [each["name"] for each in parameters if each["name"] not in by_name]
    assert not unknown, f"{method} {path}: how are these filled? {unknown}"
    assert {each["in"] for each in parameters} <= {"path", "query"}
    known_bodies = bodies(alma)
    if "requestBody" in operation or (method, path) in known_bodies:
        assert (method, path) in known_bodies, f"{method} {path}: which body?"
    in_path = [each["name"] for each in parameters if each["in"] == "path"]
    required = [each["name"] for each in parameters if each["in"] == "query" and each["required"]]
    optional = [
        each["name"] for each in parameters if each["in"] == "query" and not each["required"]
    ]
    choices = [(), *((name,) for name in optional), tuple(optional)]
    for values in itertools.product(*(by_name[name] for name in in_path)):
        filled = path
        for name, value in zip(in_path, values, strict=True):
            filled = filled.replace(f"{{{name}}}", value)
        for chosen in dict.fromkeys(choices):
            names = (*required, *chosen)
            for query in itertools.product(*(by_name[name] for name in names)):
                for body in known_bodies.get((method, path), [None]):
                    yield filled, dict(zip(names, query, strict=True)), body


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_another_tenants_keys_reach_nothing(world, method, path):
    alma, server = world.alma, world.server
    before = alma.state()
    headers = [alma.sent, {"X-Parent-Ids": "almas-call"}] if "completions" in path else [{}]
    keys = (*world.keys.items(), ("none", None))
    for (filled, query, body), named in itertools.product(requests(alma, method, path), headers):
        sent = json.dumps([filled, query, body, named])
        for scope, key in keys:
            answer = server.request(method, filled, key, params=query, json=body, headers=named)
            where = (scope, method, filled, query, body, answer.status_code, answer.text)
            assert answer.status_code < 500, where
            if key is None:
                assert answer.status_code == 401, where
            elif path.startswith("/admin/"):
                assert answer.status_code == 403, where
            if "tenant" in query:
                assert answer.status_code in (400, 401, 403, 404), where
            text = answer.text + json.dumps(dict(answer.headers))
            leaked = {mark for mark in alma.marks - world.own if mark in text and mark not in sent}
            assert not leaked, (leaked, where)
            if method != "GET" and answer.status_code < 300:
                world.own |= {mark for mark in alma.marks if mark in sent}
        server.end_runs(world.keys["app"])
    assert alma.state() == before
    assert world.own.isdisjoint(alma.hidden)


READ = {
    "/v1/responses/{response_id}": "app",
    "/v1/responses/{response_id}/input_items": "app",
    "/v1/conversations/{conversation_id}": "app",
    "/v1/conversations/{conversation_id}/items": "app",
    "/v1/conversations/{conversation_id}/items/{item_id}": "app",
    "/v1/interactions": "app",
    "/v1/interactions/{interaction_id}": "app",
    "/v1/interactions/{interaction_id}/graph": "app",
    "/v1/files": "app",
    "/v1/files/{file_id}": "app",
    "/v1/files/{file_id}/content": "app",
    "/v1/batches/{batch_id}": "app",
    "/v1/apps": "tenant",
    "/v1/apps/{app_id}": "tenant",
    "/v1/apps/{app_id}/keys": "tenant",
    "/v1/usage": "tenant",
    "/v1/usage/interactions": "tenant",
    "/v1/usage/exports": "tenant",
    "/v1/usage/exports/{export_id}": "tenant",
    "/v1/usage/exports/{export_id}/file": "tenant",
    "/v1/clients/flooding": "tenant",
    "/v1/quotas/preview": "tenant",
    "/v1/throttling/events": "tenant",
    "/v1/throttling/events/{call_id}": "tenant",
    "/v1/user-data": "tenant",
    "/v1/webhooks": "tenant",
    "/v1/webhooks/{webhook_id}": "tenant",
    "/v1/webhooks/{webhook_id}/deliveries": "tenant",
    "/admin/tenants": "admin",
    "/admin/tenants/{tenant_id}": "admin",
    "/admin/tenants/{tenant_id}/keys": "admin",
    "/admin/apps": "admin",
    "/admin/users": "admin",
    "/admin/users/{tenant_id}/{user}": "admin",
    "/admin/audit": "admin",
    "/admin/throttling/events": "admin",
    "/admin/throttling/events/{call_id}": "admin",
    "/admin/usage": "admin",
    "/admin/interactions": "admin",
    "/admin/live": "admin",
    "/admin/clients": "admin",
    "/admin/clients/flooding": "admin",
    "/admin/webhooks/dead": "admin",
    "/admin/usage/interactions": "admin",
    "/admin/usage/exports": "admin",
    "/admin/usage/exports/{export_id}": "admin",
    "/admin/usage/exports/{export_id}/file": "admin",
}


EMPTY = {"/v1/clients/flooding", "/admin/clients/flooding", "/v1/quotas/preview"}
"""Answers that name nothing of Alma: a preview of quotas has numbers only, and her users do not flood;
``test_mcp`` has a user that does."""


@pytest.mark.parametrize(("path", "scope"), READ.items())
def test_the_owner_succeeds_with_the_same_requests(world, path, scope):
    """Otherwise the isolation test could pass because its requests are invalid."""
    alma = world.alma
    keys = {"app": alma.app_key, "tenant": alma.tenant_key, "admin": world.server.admin_key}
    answers = [
        world.server.request("GET", filled, keys[scope], params=query)
        for filled, query, _ in requests(alma, "GET", path)
    ]
    good = [answer for answer in answers if answer.status_code == 200]
    assert len(good) * 2 > len(answers), [answer.text for answer in answers]
    shown = any(mark in answer.text for mark in alma.marks for answer in good)
    assert shown or path in EMPTY


def test_a_route_with_unknown_parameters_fails(world, monkeypatch):
    parameter = {"in": "path", "name": "secret_id", "required": True}
    monkeypatch.setitem(
        OPENAPI["paths"], "/v1/new/{secret_id}", {"get": {"parameters": [parameter]}}
    )
    monkeypatch.setitem(OPENAPI["paths"], "/v1/new", {"post": {"requestBody": {}}})
    with pytest.raises(AssertionError, match="how are these filled"):
        list(requests(world.alma, "GET", "/v1/new/{secret_id}"))
    with pytest.raises(AssertionError, match="which body"):
        list(requests(world.alma, "POST", "/v1/new"))
