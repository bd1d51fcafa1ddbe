"""Admin keys have names and are revoked one by one, except the last one."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from databases import ON_BOTH, ON_POSTGRESQL
from sqlalchemy import select, text

from fairserve.platform.db.identity import ApiKey
from fairserve.platform.tenancy.keys import service

KEYS = "/admin/keys"


class Operators:
    """Operators with admin keys."""

    def __init__(self, management):
        self.management = management
        self.first = management.admin_key
        (self.row,) = self.call("GET")["items"]

    def call(self, method, more="", body=None, *, key=None, **query):
        return self.management.call(key or self.first, method, KEYS + more, body, **query)

    def new(self, name, **more):
        return self.call("POST", body={"name": name, **more}, status=201)

    def works(self, key):
        headers = {"Authorization": f"Bearer {key}"}
        return self.management.client.get("/admin/tenants", headers=headers).status_code == 200

    def sign_in(self, key):
        """Return a signed-in browser: a client with a cookie."""
        client = self.management.client
        client.cookies.clear()
        answer = client.post("/console/sign-in", data={"key": key}, follow_redirects=False)
        assert answer.status_code == 303
        page = client.get("/console/keys")
        assert page.status_code == 200
        self.csrf = re.search('name="csrf" value="([0-9a-f]{64})"', page.text)[1]
        return page

    def post(self, more="", **fields):
        return self.management.client.post(
            f"/console/keys{more}", data={"csrf": self.csrf, **fields}, follow_redirects=False
        )


@pytest.fixture
def operators(management):
    return Operators(management)


@ON_BOTH
def test_a_leaked_key_is_found_and_revoked(operators):
    leaked = operators.new("anna's laptop")
    assert leaked["api_key"].startswith("sk-fs-a-")
    assert operators.works(leaked["api_key"])
    operators.call("PATCH", f"/{operators.row['id']}", {"name": "first"})
    first, found = operators.call("GET")["items"]
    assert (first["name"], found["name"]) == ("first", "anna's laptop")
    assert found["last_used_at"] is not None
    assert found["prefix"] == leaked["api_key"][:12]
    assert operators.call("DELETE", f"/{found['id']}")["revoked_at"]
    assert not operators.works(leaked["api_key"])
    assert operators.works(operators.first)


@ON_POSTGRESQL
def test_the_last_key_without_expiry_cannot_be_revoked(operators):
    only = f"/{operators.row['id']}"
    error = operators.call("DELETE", only, status=409)["error"]
    assert error["code"] == "last_admin_key"
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    short = operators.new("short", expires_at=soon)
    operators.call("DELETE", only, status=409)
    second = operators.new("second")
    operators.call("DELETE", only, key=second["api_key"])
    assert not operators.works(operators.first)
    for key in (second, short):
        operators.call("DELETE", f"/{second['id']}", key=key["api_key"], status=409)
    operators.call("DELETE", f"/{short['id']}", key=second["api_key"])
    assert operators.works(second["api_key"])


@ON_POSTGRESQL
def test_two_operators_cannot_revoke_the_last_two_keys(operators):
    """The second request waits for the first one and sees its result."""
    second = operators.new("second")
    sessions = operators.management.state.session_factory
    with sessions.begin() as session:
        ids = [operators.row["id"], second["id"]]
        held = select(ApiKey).where(ApiKey.id.in_(ids)).with_for_update()
        session.scalars(held).all()
        with sessions() as other:
            other.execute(text("SET lock_timeout = '50ms'"))
            ring = service.KeyRing(
                other, None, operators.management.state.authenticator, service.keys.KeyOwner(None)
            )
            with pytest.raises(Exception, match="lock timeout"):
                ring.revoke(second["id"])


@pytest.mark.parametrize("grace_s", [0, 3600])
def test_a_rotation_ends_all_others(operators, grace_s):
    other = operators.new("other")
    new = operators.call("POST", "/rotate", {"grace_s": grace_s}, status=201)
    assert operators.works(new["api_key"])
    old = (operators.first, other["api_key"])
    assert [operators.works(key) for key in old] == [grace_s > 0] * 2
    error = operators.call("DELETE", f"/{new['id']}", key=new["api_key"], status=409)["error"]
    assert error["code"] == "last_admin_key"


def test_only_admin_keys_manage_admin_keys(operators):
    tenant = operators.management.new_tenant("acme")
    app = operators.management.new_app(tenant)
    for key in (tenant["api_key"], app["api_key"]):
        for method, more, body in (
            ("GET", "", None),
            ("POST", "", {"name": "x"}),
            ("POST", "/rotate", None),
            ("PATCH", f"/{operators.row['id']}", {"name": "x"}),
            ("DELETE", f"/{operators.row['id']}", None),
        ):
            operators.call(method, more, body, key=key, status=403)
    for key in (tenant["key"], app["key"]):
        operators.call("DELETE", f"/{key['id']}", status=404)
    operators.call("POST", body={"name": "a\nb"}, status=400)


def test_admin_keys_are_bounded(operators, monkeypatch):
    monkeypatch.setattr(service, "MAX_KEYS", 2)
    operators.new("second")
    error = operators.call("POST", status=409)["error"]
    assert error["code"] == "too_many_keys"


def test_operators_manage_keys_in_the_console(operators):
    page = operators.sign_in(operators.first)
    assert operators.row["prefix"] in page.text
    made = operators.post(**{"key.name": "anna & co"})
    plain = re.search("sk-fs-a-[A-Za-z0-9_-]{43}", made.text)[0]
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    assert operators.works(plain)
    assert plain not in operators.management.client.get("/console/keys").text, "once"
    made = operators.call("GET")["items"][1]
    assert made["name"] == "anna & co"
    renamed = operators.post(f"/{made['id']}", action="save", **{f"{made['id']}.name": "anna"})
    assert renamed.headers["location"] == "/console/keys?done=key_changed"
    assert operators.call("GET")["items"][1]["name"] == "anna"
    blank = operators.post(f"/{made['id']}", action="save", **{f"{made['id']}.name": " "})
    assert blank.status_code == 400
    revoked = operators.post(f"/{made['id']}", action="revoke")
    assert revoked.headers["location"] == "/console/keys?done=key_revoked"
    assert not operators.works(plain)
    last = operators.post(f"/{operators.row['id']}", action="revoke")
    assert last.status_code == 400
    assert "create another one first" in last.text
    assert operators.post(**{"key.name": "x", "key.expires_at": "yesterday"}).status_code == 400
    assert operators.post("/key_none", action="revoke").status_code == 404

    replaced = operators.post("/rotate")
    plain = re.search("sk-fs-a-[A-Za-z0-9_-]{43}", replaced.text)[0]
    assert not operators.works(operators.first)
    answer = operators.management.client.get("/console/keys", follow_redirects=False)
    assert answer.status_code == 303, "the sign-in ended with its key"
    assert operators.sign_in(plain).status_code == 200


def test_tenants_have_no_admin_key_page(operators):
    tenant = operators.management.new_tenant("acme")
    client = operators.management.client
    assert client.post("/console/sign-in", data={"key": tenant["api_key"]}).status_code == 200
    assert client.get("/console/keys").status_code == 404
    assert "/console/keys" not in client.get("/console/audit").text


def test_sign_ins_and_failures_are_in_the_audit_log(operators):
    management = operators.management
    tenant = management.new_tenant("acme")
    operators.sign_in(operators.first)
    client = management.client
    client.post("/console/sign-in", data={"key": tenant["api_key"]})
    for _ in range(25):
        client.post("/console/sign-in", data={"key": "guess"})
    log = management.call(management.admin_key, "GET", "/admin/audit", limit=100)["items"]
    found = [item for item in log if item["action"].startswith("console.")]
    assert [(item["action"], item["actor"], item["tenant"]) for item in found] == [
        ("console.sign_in_failed", "unknown", None),
        ("console.sign_in", tenant["key"]["prefix"], tenant["id"]),
        ("console.sign_in", operators.row["prefix"], None),
    ]
    assert found[0]["after"] == {"reason": "invalid_api_key", "by": "key", "attempts": 1}
    assert found[2]["target"] == operators.row["id"]
