"""Test the keys of a tenant and of an app: names, expiry, rotation with overlap, bounds."""

from datetime import UTC, datetime, timedelta

import pytest
from databases import ON_BOTH

from fairserve.platform.db.base import utc_now
from fairserve.platform.tenancy.auth import Authenticator
from fairserve.platform.tenancy.keys import service


class Ring:
    """The key routes of a tenant or an app."""

    def __init__(self, management, kind):
        tenant = management.new_tenant("acme")
        app = management.new_app(tenant)
        self.management, self.kind = management, kind
        self.owner = tenant if kind == "tenant" else app
        self.other = app if kind == "tenant" else tenant
        self.key = management.admin_key if kind == "tenant" else tenant["api_key"]
        self.path = f"/admin/tenants/{tenant['id']}/keys"
        if kind == "app":
            self.path = f"/v1/apps/{app['id']}/keys"

    def call(self, method, more="", body=None, **query):
        return self.management.call(self.key, method, self.path + more, body, **query)

    def new(self, **body):
        return self.call("POST", body=body, status=201)

    def works(self, plain):
        headers = {"Authorization": f"Bearer {plain}"}
        return self.management.client.get("/v1/usage", headers=headers).status_code == 200


@pytest.fixture(params=["tenant", "app"])
def ring(request, management):
    return Ring(management, request.param)


class Clock:
    """Clock of the authenticator, which may run ahead of the machine's."""

    def __init__(self):
        self.ahead = timedelta()

    def __call__(self):
        return utc_now() + self.ahead


@pytest.fixture
def clock(management):
    clock = Clock()
    state = management.state
    state.authenticator = Authenticator(state.session_factory, management.hasher, now=clock)
    return clock


@ON_BOTH
def test_keys_have_names_and_expire(ring, clock):
    end = datetime.now(UTC) + timedelta(hours=1)
    named = ring.new(name="  build server ", expires_at=end.isoformat())
    assert named["name"] == "build server"
    assert datetime.fromisoformat(named["expires_at"]) == end
    letter = "t" if ring.kind == "tenant" else "p"
    assert named["api_key"].startswith(f"sk-fs-{letter}-")
    listed = ring.call("GET")
    assert [item["name"] for item in listed["items"]] == ["", "build server"]
    assert listed["total"] == 2
    assert all("api_key" not in item for item in listed["items"])
    assert ring.works(named["api_key"])
    clock.ahead = timedelta(minutes=61)
    assert not ring.works(named["api_key"])
    assert ring.works(ring.owner["api_key"])
    for body in ({"name": ""}, {"name": "a\nb"}, {"name": "n" * 201}, {"expires_at": "2999-01-01"}):
        assert ring.call("POST", body=body, status=400)["error"]["param"] == next(iter(body))
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    assert (
        ring.call("POST", body={"expires_at": past}, status=400)["error"]["param"] == "expires_at"
    )


def test_old_keys_work_during_the_grace_of_a_rotation(ring, clock):
    soon = datetime.now(UTC) + timedelta(minutes=10)
    short = ring.new(expires_at=soon.isoformat())
    old = ring.owner["api_key"]
    new = ring.call("POST", "/rotate", {"grace_s": 3600}, status=201)
    assert all(map(ring.works, (old, short["api_key"], new["api_key"])))
    clock.ahead = timedelta(minutes=11)
    assert not ring.works(short["api_key"])
    assert ring.works(old)
    clock.ahead = timedelta(minutes=59)
    assert ring.works(old)
    clock.ahead = timedelta(minutes=61)
    assert not ring.works(old)
    assert ring.works(new["api_key"])
    assert ring.works(ring.other["api_key"])


def test_a_rotation_without_grace_ends_old_keys_immediately(ring):
    second = ring.new()
    new = ring.call("POST", "/rotate", status=201)
    assert not any(map(ring.works, (ring.owner["api_key"], second["api_key"])))
    assert all(map(ring.works, (new["api_key"], ring.other["api_key"])))
    for grace_s in (-1, 31 * 86_400, "NaN"):
        error = ring.call("POST", "/rotate", {"grace_s": grace_s}, status=400)["error"]
        assert error["param"] == "grace_s"


def test_a_key_is_revoked_once(ring):
    second = ring.new()
    revoked = ring.call("DELETE", f"/{second['id']}")
    assert revoked["revoked_at"]
    assert not ring.works(second["api_key"])
    assert ring.call("DELETE", f"/{second['id']}") == revoked
    ring.call("DELETE", f"/{ring.other['key']['id']}", status=404)
    ring.call("DELETE", "/key_none", status=404)
    assert ring.works(ring.other["api_key"])


def test_a_key_is_renamed(ring):
    second = ring.new(name="ci")
    renamed = ring.call("PATCH", f"/{second['id']}", {"name": " build server "})
    assert renamed["name"] == "build server"
    assert ring.call("GET")["items"][1]["name"] == "build server"
    assert ring.works(second["api_key"])
    ring.call("PATCH", f"/{ring.other['key']['id']}", {"name": "x"}, status=404)
    error = ring.call("PATCH", f"/{second['id']}", {"name": "a\nb"}, status=400)["error"]
    assert error["param"] == "name"


def test_only_valid_keys_count_for_the_bound(ring, monkeypatch):
    monkeypatch.setattr(service, "MAX_KEYS", 2)
    second = ring.new()
    assert ring.call("POST", status=409)["error"]["code"] == "too_many_keys"
    ring.call("POST", "/rotate", {"grace_s": 60}, status=409)
    ring.call("DELETE", f"/{second['id']}")
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    ring.new(expires_at=soon)
    ring.call("POST", status=409)
    monkeypatch.setattr(service, "utc_now", lambda: utc_now() + timedelta(hours=2))
    ring.new()
    ring.call("POST", "/rotate", status=201)
