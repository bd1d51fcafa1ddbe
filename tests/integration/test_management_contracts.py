"""Test quotas, weights and user settings over HTTP."""

from itertools import product

import pytest
from databases import ON_BOTH, ON_POSTGRESQL
from sqlalchemy import func, select

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import (
    AppChanged,
    ContractChanged,
    TenantChanged,
    UserChanged,
)
from fairserve.throttling.quotas.quota import Quota

SETTINGS = (AppChanged, TenantChanged, UserChanged, ContractChanged)
NOTHING = {
    "rpm_limit": None,
    "tpm_limit": None,
    "max_parallel_requests": None,
    "max_budget": None,
    "soft_budget": None,
    "soft_end": "warn",
    "budget_duration": None,
    "allowed_models": None,
}
FULL = {
    "rpm_limit": 60,
    "tpm_limit": 100_000,
    "max_parallel_requests": 4,
    "max_budget": 12.5,
    "soft_budget": 0.1,
    "soft_end": "finish_runs",
    "budget_duration": "1mo",
    "allowed_models": ["small", "org/large"],
}
NAMES = {
    "tenant": "contract",
    "app": "contract",
    "app_user": "user_contract",
    "user": "contract",
}
"""Field that holds the quota of each scope."""
FULL_QUOTA = Quota(60, 100_000, 4, 12_500_000_000, 100_000_000, "finish_runs", "1mo")


def contracts(management):
    return [event for event in management.control.events if isinstance(event, ContractChanged)]


def known(events):
    """Return the state of control after the events."""
    directory = Directory()
    for event in events:
        directory.take(event)
    return directory.snapshot()


def same_after_a_restart(management):
    """Return whether control would load at its start the state that it got by events."""
    with management.state.session_factory() as session:
        loaded = known(load_control_events(session, LearningOptions()))
    published = known(management.control.events)
    for state in (loaded, published):
        for entries in state.values():
            if isinstance(entries, list):
                entries.sort(key=str)
    return loaded == published


class Scopes:
    """The four scopes: how each quota is set and shown, and its subject in control."""

    def __init__(self, management):
        self.management = management
        self.tenant = management.new_tenant("acme")
        self.app = management.new_app(self.tenant)
        management.control.events.clear()

    def set(self, scope, body, status=200):
        call, admin = self.management.call, self.management.admin_key
        tenant, app = self.tenant, self.app
        if scope == "tenant":
            path = f"/admin/tenants/{tenant['id']}"
            return call(admin, "PATCH", path, {"contract": body}, status=status)
        if scope == "user":
            path = f"/admin/users/{tenant['id']}/team/zoé"
            return call(admin, "PUT", path, {"contract": body}, status=status)
        path = f"/v1/apps/{app['id']}"
        return call(tenant["api_key"], "PATCH", path, {NAMES[scope]: body}, status=status)

    def shown(self, scope, answer):
        return answer[NAMES[scope]]

    def holder(self, scope):
        app = self.app["id"] if scope in ("app", "app_user") else ""
        return scope, self.tenant["id"], app, "team/zoé" if scope == "user" else ""


@pytest.fixture
def holders(management):
    return Scopes(management)


@pytest.mark.parametrize("scope", ["tenant", "app", "app_user", "user"])
def test_a_quota_is_set_published_stored_and_removed(management, holders, scope):
    assert holders.shown(scope, holders.set(scope, FULL)) == FULL
    models = ("small", "org/large")
    event = ContractChanged(*holders.holder(scope), FULL_QUOTA, models)
    assert contracts(management) == [event]
    with management.state.session_factory() as session:
        assert event in load_control_events(session, LearningOptions())
    assert holders.shown(scope, holders.set(scope, None)) == NOTHING
    assert contracts(management) == [event, ContractChanged(*holders.holder(scope))]
    with management.state.session_factory() as session:
        assert session.scalar(select(func.count(Contract.tenant_id))) == 0


@pytest.mark.parametrize("scope", ["tenant", "app", "app_user"])
def test_a_change_keeps_unnamed_fields(management, holders, scope):
    holders.set(scope, FULL)
    changed = holders.shown(scope, holders.set(scope, {"rpm_limit": 90, "tpm_limit": None}))
    assert changed == FULL | {"rpm_limit": 90, "tpm_limit": None}
    assert contracts(management)[-1].quota.rpm_limit == 90
    published = len(contracts(management))
    holders.set(scope, {"rpm_limit": 90})
    assert len(contracts(management)) == published
    nothing = dict.fromkeys(NOTHING)
    assert holders.shown(scope, holders.set(scope, nothing)) == NOTHING
    with management.state.session_factory() as session:
        assert session.scalar(select(func.count(Contract.tenant_id))) == 0


def test_a_put_of_a_user_replaces_its_contract(management, holders):
    holders.set("user", FULL)
    assert holders.set("user", {"rpm_limit": 5})["contract"] == NOTHING | {"rpm_limit": 5}
    path = f"/admin/users/{holders.tenant['id']}/team/zoé"
    assert management.call(management.admin_key, "PUT", path, {})["contract"] == NOTHING


def test_without_a_soft_budget_no_soft_limit_is_shown(holders):
    holders.set("tenant", FULL)
    assert holders.set("tenant", {"soft_budget": None})["contract"]["soft_end"] == "warn"


WRONG_FIELDS = [
    ({"rpm_limit": 0}, "rpm_limit"),
    ({"rpm_limit": 1.5}, "rpm_limit"),
    ({"tpm_limit": 1_000_000_001}, "tpm_limit"),
    ({"max_parallel_requests": -1}, "max_parallel_requests"),
    ({"max_budget": -1, "budget_duration": "1d"}, "max_budget"),
    ({"max_budget": 1e10, "budget_duration": "1d"}, "max_budget"),
    ({"max_budget": "NaN", "budget_duration": "1d"}, "max_budget"),
    ({"soft_budget": 1e-10, "budget_duration": "1d"}, "soft_budget"),
    ({"max_budget": 1, "budget_duration": "5h"}, "budget_duration"),
    ({"max_budget": 1, "budget_duration": "day"}, "budget_duration"),
    ({"soft_end": "stop"}, "soft_end"),
    ({"allowed_models": []}, "allowed_models"),
    ({"allowed_models": [""]}, "allowed_models.0"),
    ({"allowed_models": ["a\n"]}, "allowed_models.0"),
    ({"allowed_models": ["m" * 256]}, "allowed_models.0"),
    ({"allowed_models": ["m"] * 101}, "allowed_models"),
    ({"rpm": 1}, "rpm"),
]


def test_an_invalid_field_is_named(management, holders):
    for (body, field), scope in product(WRONG_FIELDS, ("tenant", "app_user", "user")):
        error = holders.set(scope, body, status=400)["error"]
        assert error["param"] == f"{NAMES[scope]}.{field}"
        assert error["param"] in error["message"]
    assert contracts(management) == []


WRONG_TOGETHER = [
    ({"max_budget": 1}, "budget_duration", "a budget needs a budget_duration"),
    ({"soft_budget": 1}, "budget_duration", "a budget needs a budget_duration"),
    (
        {"max_budget": 1, "soft_budget": 2, "budget_duration": "1d"},
        "soft_budget",
        "soft_budget is over max_budget",
    ),
    ({"rpm_limit": 1, "soft_end": "finish_runs"}, "soft_end", "without a soft_budget"),
]


def test_contradicting_limits_are_rejected(management, holders):
    for (body, field, message), scope in product(WRONG_TOGETHER, ("tenant", "app_user", "user")):
        error = holders.set(scope, body, status=400)["error"]
        assert error["param"] == f"{NAMES[scope]}.{field}"
        assert message in error["message"]
    assert management.control.events == []


def test_a_partly_invalid_change_is_rejected_as_a_whole(management, holders):
    path, key = f"/v1/apps/{holders.app['id']}", holders.tenant["api_key"]
    before = management.call(key, "GET", path)
    body = {
        "name": "new",
        "limits": {"user_rpm": 50},
        "contract": {"rpm_limit": 5},
        "user_contract": {"max_budget": 5},
    }
    management.call(key, "PATCH", path, body, status=400)
    assert management.call(key, "GET", path) == before
    assert management.control.events == []


def test_a_change_is_validated_with_the_stored_limits(management, holders):
    holders.set("app", {"max_budget": 5, "budget_duration": "1d"})
    assert holders.set("app", {"soft_budget": 5})["contract"]["soft_budget"] == 5
    error = holders.set("app", {"max_budget": 4}, status=400)["error"]
    assert error["param"] == "contract.soft_budget"
    error = holders.set("app", {"budget_duration": None}, status=400)["error"]
    assert error["param"] == "contract.budget_duration"
    assert holders.set("app", {"max_budget": None})["contract"]["soft_budget"] == 5


def test_a_tenant_sets_quotas_of_its_apps_but_not_its_own(management, holders):
    key, tenant, app = holders.tenant["api_key"], holders.tenant["id"], holders.app["id"]
    body = {"contract": {"rpm_limit": 1}}
    management.call(key, "PATCH", f"/admin/tenants/{tenant}", body, status=403)
    management.call(key, "PUT", f"/admin/users/{tenant}/zoé", body, status=403)
    for name, weight in (("heavy", 5), ("light", 1.0)):
        profile = {"stages": [{"input_tokens": 1, "output_tokens": 1}]}
        new = {"name": name, "profile": profile, "weight": weight}
        error = management.call(key, "POST", "/v1/apps", new, status=403)["error"]
        assert error["param"] == "weight"
    management.call(key, "PATCH", f"/v1/apps/{app}", {"weight": 5}, status=403)
    assert management.control.events == []
    named = {"tenant": tenant}
    path = f"/v1/apps/{app}"
    assert (
        management.call(management.admin_key, "PATCH", path, {"weight": 5}, **named)["weight"] == 5
    )
    assert management.control.events[-1].weight == 5
    for weight in (0, 0.001, 101, "NaN"):
        body = {"weight": weight}
        management.rejected(management.admin_key, "PATCH", path, body, param="weight", **named)


def test_tenants_and_apps_are_created_with_quotas(management):
    body = {"name": "acme", "weight": 2, "contract": {"rpm_limit": 9}}
    tenant = management.call(management.admin_key, "POST", "/admin/tenants", body, status=201)
    assert (tenant["weight"], tenant["contract"]["rpm_limit"]) == (2, 9)
    app = management.new_app(tenant, contract={"rpm_limit": 8}, user_contract={"rpm_limit": 7})
    assert app["contract"]["rpm_limit"] == 8
    assert app["user_contract"]["rpm_limit"] == 7
    published = [(event.scope, event.quota.rpm_limit) for event in contracts(management)]
    assert published == [("tenant", 9), ("app", 8), ("app_user", 7)]
    assert TenantChanged(tenant["id"], 2.0) in management.control.events
    listed = management.call(tenant["api_key"], "GET", "/v1/apps")["items"]
    assert listed[0]["user_contract"] == NOTHING | {"rpm_limit": 7}
    listed = management.call(management.admin_key, "GET", "/admin/tenants")["items"]
    assert listed[0]["contract"] == NOTHING | {"rpm_limit": 9}


@ON_BOTH
def test_levels_of_a_tenant_are_set_and_published(management):
    by_app = "tenant > app > user"
    new = {"name": "acme", "levels": by_app}
    tenant = management.call(management.admin_key, "POST", "/admin/tenants", new, status=201)
    place = f"/admin/tenants/{tenant['id']}"
    assert tenant["levels"] == by_app
    assert management.control.events[-1] == TenantChanged(tenant["id"], 1.0, by_app)
    renamed = management.call(management.admin_key, "PATCH", place, {"name": "Acme", "weight": 3})
    assert (renamed["levels"], renamed["weight"]) == (by_app, 3)
    assert management.control.events[-1] == TenantChanged(tenant["id"], 3.0, by_app)
    before = len(management.control.events)
    management.call(management.admin_key, "PATCH", place, {"levels": by_app})
    assert len(management.control.events) == before, "nothing changed"
    for levels in ("user", "team", "", 1):
        body = {"levels": levels}
        management.rejected(management.admin_key, "PATCH", place, body, param="levels")
    management.call(tenant["api_key"], "PATCH", place, {"levels": None}, status=403)
    assert management.call(management.admin_key, "PATCH", place, {"levels": None})["levels"] is None
    assert management.call(management.admin_key, "GET", place)["levels"] is None
    assert management.control.events[-1] == TenantChanged(tenant["id"], 3.0)
    audited = management.call(management.admin_key, "GET", "/admin/audit", tenant=tenant["id"])
    change = audited["items"][0]
    assert change["action"] == "tenant.change"
    assert (change["before"]["levels"], change["after"]["levels"]) == (by_app, None)


@ON_POSTGRESQL
def test_control_loads_after_a_restart_what_it_got_by_events(management, holders):
    tenant, app = holders.tenant, holders.app
    management.new_app(tenant, "second", limits={"user_rpm": 100})
    path, named = f"/v1/apps/{app['id']}", {"tenant": tenant["id"]}
    changes = [
        lambda: management.call(management.admin_key, "PATCH", path, {"weight": 3}, **named),
        lambda: management.call(
            management.admin_key, "PATCH", f"/admin/tenants/{tenant['id']}", {"weight": 0.5}
        ),
        *(lambda scope=scope: holders.set(scope, FULL) for scope in ("tenant", "app", "app_user")),
        lambda: management.call(
            management.admin_key,
            "PUT",
            f"/admin/users/{tenant['id']}/anna",
            {"weight": 2, "contract": FULL | {"allowed_models": None}},
        ),
        lambda: holders.set("app", None),
        lambda: management.call(
            management.admin_key, "PATCH", f"/admin/tenants/{tenant['id']}", {"weight": 1}
        ),
        *(
            lambda levels=levels: management.call(
                management.admin_key, "PATCH", f"/admin/tenants/{tenant['id']}", {"levels": levels}
            )
            for levels in ("tenant > app > user", None)
        ),
        lambda: management.call(tenant["api_key"], "PATCH", path, {"suspended": True}),
        lambda: management.call(tenant["api_key"], "DELETE", path),
        lambda: management.call(tenant["api_key"], "POST", f"{path}/restore"),
        lambda: management.call(
            management.admin_key, "DELETE", f"/admin/users/{tenant['id']}/anna"
        ),
    ]
    management.call(tenant["api_key"], "PATCH", path, {})
    for change in changes:
        change()
        assert same_after_a_restart(management)


@ON_BOTH
def test_a_user_is_read_listed_and_reset(management, holders):
    admin, tenant = management.admin_key, holders.tenant["id"]
    path = f"/admin/users/{tenant}/team/zoé"
    nobody = management.call(admin, "GET", path)
    assert (nobody["weight"], nobody["contract"], nobody["updated_at"]) == (1, NOTHING, None)
    body = {"weight": 2, "rpm": 3, "blocked": True, "contract": {"rpm_limit": 4}}
    put = management.call(admin, "PUT", path, body)
    assert management.call(admin, "GET", path) == put
    management.call(admin, "PUT", f"/admin/users/{tenant}/Team/bob", {"weight": 2})
    for beginning, users in (("team/", ["team/zoé"]), ("T", ["Team/bob"]), ("%", [])):
        found = management.call(admin, "GET", "/admin/users", user=beginning)
        assert [item["user"] for item in found["items"]] == users
        assert found["total"] == len(users)
    listed = management.call(admin, "GET", "/admin/users", tenant=tenant)["items"]
    assert [item["contract"]["rpm_limit"] for item in listed if item["user"] == "team/zoé"] == [4]
    management.control.events.clear()
    for _ in range(2):
        assert management.call(admin, "DELETE", path) == nobody
    assert management.control.events == [
        UserChanged(tenant, "team/zoé"),
        ContractChanged("user", tenant, "", "team/zoé"),
    ]
    assert management.call(admin, "GET", "/admin/users", user="team/")["total"] == 0
    management.call(admin, "GET", "/admin/users/tn_none/x", status=404)
    management.call(admin, "DELETE", "/admin/users/tn_none/x", status=404)


def test_quotas_are_in_the_audit_log(management, holders):
    holders.set("tenant", {"rpm_limit": 5})
    holders.set("tenant", {"rpm_limit": 6})
    with management.state.session_factory() as session:
        row = session.scalars(select(AuditEntry).order_by(AuditEntry.at.desc())).first()
    assert row.action == "tenant.change"
    assert row.before["contract"] == NOTHING | {"rpm_limit": 5}
    assert row.after["contract"] == NOTHING | {"rpm_limit": 6}
