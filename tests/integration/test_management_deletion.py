"""Tenants and apps are suspended, deleted, restored and purged."""

from datetime import datetime, timedelta

import pytest
from databases import ON_POSTGRESQL
from sqlalchemy import func, select

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.background.retention import delete_old
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.identity import ApiKey, App, AppLimits, EndUser, Tenant, TokenProfile
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.tenancy.apps import service as app_service
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.platform.tenancy.tenants.purge import purge

RETENTION = timedelta(days=90)


class World:
    """A tenant with an app, either of which is deleted and restored."""

    def __init__(self, management, kind):
        self.management, self.kind = management, kind
        self.tenant = management.new_tenant("acme")
        self.app = management.new_app(self.tenant, "chat")
        self.id = {"tenant": self.tenant, "app": self.app}[kind]["id"]
        self.path = {"tenant": "/admin/tenants", "app": "/v1/apps"}[kind]
        self.key = {"tenant": management.admin_key, "app": self.tenant["api_key"]}[kind]
        self.name = {"tenant": "acme", "app": "chat"}[kind]
        self.stopped = [self.app["api_key"]]
        if kind == "tenant":
            self.stopped.append(self.tenant["api_key"])

    def call(self, method, more="", body=None, **query):
        path = f"{self.path}/{self.id}{more}"
        return self.management.call(self.key, method, path, body, **query)

    def create(self, name, status=201):
        if self.kind == "tenant":
            body = {"name": name}
        else:
            body = {"name": name, "profile": {"stages": [{"input_tokens": 1, "output_tokens": 1}]}}
        return self.management.call(self.key, "POST", self.path, body, status=status)

    def list(self, **query):
        found = self.management.call(self.key, "GET", self.path, **query)
        assert found["total"] == len(found["items"])
        return [item["name"] for item in found["items"]]

    def keys_work(self):
        """Return whether all its keys work; False if none does."""
        answers = {
            self.management.client.get(
                "/v1/usage", headers={"Authorization": f"Bearer {key}"}
            ).status_code
            for key in self.stopped
        }
        assert len(answers) == 1
        return answers == {200}


@pytest.fixture(params=["tenant", "app"])
def world(request, management):
    return World(management, request.param)


def test_a_deleted_owner_stops_immediately_and_can_be_restored(management, world):
    assert world.keys_work()
    deleted = world.call("DELETE")
    assert deleted["name"] == world.name
    at, purge_after = (datetime.fromisoformat(deleted[k]) for k in ("deleted_at", "purge_after"))
    assert purge_after - at == RETENTION
    assert not world.keys_work()
    assert management.programs.cancelled == [(f"its {world.kind} was deleted", world.id)]
    assert world.list() == []
    assert world.list(deleted=True) == [world.name]
    assert world.call("GET") == deleted
    assert world.call("DELETE") == deleted
    restored = world.call("POST", "/restore")
    assert restored == deleted | {"deleted_at": None, "purge_after": None}
    assert world.keys_work()
    assert (world.list(), world.list(deleted=True)) == ([world.name], [])
    assert world.call("POST", "/restore") == restored
    assert len(management.programs.cancelled) == 1


def test_a_deleted_owner_cannot_be_changed(management, world):
    path = "/keys" if world.kind == "tenant" else f"/keys?tenant={world.tenant['id']}"
    first = world.call("GET", path)["items"][0]["id"]
    world.call("DELETE")
    for method, more, body in (
        ("PATCH", "", {"name": "new"}),
        ("POST", "/keys", None),
        ("POST", "/keys/rotate", None),
    ):
        error = world.call(method, more, body, status=409)["error"]
        assert error["code"] == "deleted"
    assert world.call("DELETE", f"/keys/{first}")["revoked_at"]


def test_the_name_of_a_deleted_owner_can_be_reused(world):
    world.call("DELETE")
    second = world.create(world.name)
    error = world.call("POST", "/restore", status=409)["error"]
    assert error["param"] == "name"
    world.management.call(world.key, "PATCH", f"{world.path}/{second['id']}", {"name": "other"})
    world.call("POST", "/restore")
    world.create(world.name, status=409)


def test_suspended_owners_are_rejected_until_they_are_resumed(management, world):
    assert world.keys_work()
    assert world.call("PATCH", body={"suspended": True})["suspended_at"]
    assert not world.keys_work()
    assert management.programs.cancelled == [(f"its {world.kind} is suspended", world.id)]
    assert world.list() == [world.name]
    world.call("DELETE")
    assert world.call("POST", "/restore")["suspended_at"]
    assert not world.keys_work()
    assert world.call("PATCH", body={"suspended": False})["suspended_at"] is None
    assert world.keys_work()


@ON_POSTGRESQL
def test_a_deleted_tenant_has_no_apps_and_no_users(management):
    world = World(management, "tenant")
    management.call(management.admin_key, "PUT", f"/admin/users/{world.id}/zoé", {"weight": 2})
    world.call("DELETE")
    named = {"tenant": world.id}
    path = f"/v1/apps/{world.app['id']}"
    for method, where in (("GET", "/v1/apps"), ("GET", path), ("DELETE", path)):
        management.call(management.admin_key, method, where, status=404, **named)
    assert management.call(management.admin_key, "GET", "/admin/apps")["total"] == 0
    assert management.call(management.admin_key, "GET", "/admin/apps", deleted=True)["total"] == 0
    user = f"/admin/users/{world.id}/zoé"
    management.call(management.admin_key, "PUT", user, {}, status=409)
    management.call(management.admin_key, "DELETE", user, status=409)
    world.call("POST", "/restore")
    assert management.call(management.admin_key, "GET", user)["weight"] == 2
    assert management.call(management.admin_key, "GET", "/admin/apps")["total"] == 1
    management.call(world.tenant["api_key"], "DELETE", path)
    listed = management.call(management.admin_key, "GET", "/admin/apps", deleted=True, **named)
    assert [item["id"] for item in listed["items"]] == [world.app["id"]]
    assert listed["items"][0]["purge_after"]


def test_deleted_apps_count_for_the_bound(management, monkeypatch):
    monkeypatch.setattr(app_service, "MAX_APPS", 2)
    monkeypatch.setattr(app_service, "MAX_ROWS", 3)
    world = World(management, "app")
    world.create("second")
    assert world.create("third", status=409)["error"]["code"] == "too_many_apps"
    world.call("DELETE")
    third = world.create("third")
    assert world.call("POST", "/restore", status=409)["error"]["code"] == "too_many_apps"
    management.call(world.key, "DELETE", f"/v1/apps/{third['id']}")
    assert "including deleted ones" in world.create("fourth", status=409)["error"]["message"]
    world.call("POST", "/restore")


def rows(management):
    """Return the number of rows of each owned table."""
    tables = (Tenant, App, ApiKey, TokenProfile, AppLimits, Contract, EndUser, ProgramRow)
    with management.state.session_factory() as session:
        return {
            table.__tablename__: session.scalar(select(func.count()).select_from(table))
            for table in tables
        }


def furnish(world):
    """Create a quota of every scope, a user and a program for the app."""
    management, tenant, app = world.management, world.tenant["id"], world.app["id"]
    limits = {"rpm_limit": 1}
    management.call(management.admin_key, "PATCH", f"/admin/tenants/{tenant}", {"contract": limits})
    management.call(
        world.tenant["api_key"],
        "PATCH",
        f"/v1/apps/{app}",
        {"contract": limits, "user_contract": limits},
    )
    management.call(management.admin_key, "PUT", f"/admin/users/{tenant}/zoé", {"contract": limits})
    with management.state.session_factory.begin() as session:
        session.add(
            ProgramRow(
                tenant_id=tenant,
                app_id=app,
                id="run",
                user_id="zoé",
                attempt=0,
                declaration={},
                limits={},
                state="cancelled",
                reason="",
                created_at=utc_now(),
                ended_at=utc_now(),
            )
        )


def purged(management, before):
    """Purge what was deleted earlier, one row of a kind a step; return the number of steps."""
    steps = 0
    while True:
        with management.state.session_factory.begin() as session:
            if not purge(session, before, max_rows=1):
                return steps
        steps += 1


@ON_POSTGRESQL
def test_deleted_owners_are_purged_after_the_retention(management, world):
    other = management.new_app(management.new_tenant("other"))
    furnish(world)
    second = management.new_app(world.tenant, "second")
    before = rows(management)
    assert (before["contracts"], before["programs"], before["end_users"]) == (4, 1, 1)
    world.call("DELETE")
    now = utc_now()
    assert purged(management, now - RETENTION) == 0
    assert rows(management) == before
    assert purged(management, now + timedelta(seconds=1)) == (2 if world.kind == "tenant" else 1)
    world.call("GET", status=404)
    world.call("POST", "/restore", status=404)
    left = rows(management)
    stays = [other["id"]] if world.kind == "tenant" else [other["id"], second["id"]]
    tenants = 1 if world.kind == "tenant" else 2
    assert left == {
        "tenants": tenants,
        "apps": len(stays),
        "api_keys": 1 + tenants + len(stays),
        "token_profiles": len(stays),
        "limits": len(stays),
        "contracts": 0 if world.kind == "tenant" else 2,
        "end_users": tenants - 1,
        "programs": 0,
    }
    with management.state.session_factory() as session:
        found = [
            event.app
            for event in load_control_events(session, LearningOptions())
            if hasattr(event, "profile")
        ]
    assert found == stays
    log = management.call(management.admin_key, "GET", "/admin/audit", actor="system")["items"]
    assert (f"{world.kind}.purge", world.id) in {(row["action"], row["target"]) for row in log}
    management.call(other["api_key"], "GET", "/v1/usage")


@ON_POSTGRESQL
def test_the_server_purges_by_its_retention(management, world):
    """The purge step of the server uses its retention setting."""
    furnish(world)
    world.call("DELETE")
    settings = management.state.settings
    sessions = management.state.session_factory
    table = {"tenant": Tenant, "app": App}[world.kind]

    def older(days):
        with sessions.begin() as session:
            session.get(table, world.id).deleted_at -= timedelta(days=days)

    older(settings.tenancy.ledger_retention_days - 1)
    assert delete_old(sessions, settings) == 0
    older(2)
    while delete_old(sessions, settings):
        pass
    world.call("GET", status=404)


def test_restored_owners_are_not_purged(management, world):
    world.call("DELETE")
    world.call("POST", "/restore")
    assert purged(management, utc_now() + RETENTION) == 0
    with management.state.session_factory() as session:
        assert session.scalar(select(func.count(Tenant.id))) == 1
        assert session.scalar(select(func.count(App.id))) == 1
