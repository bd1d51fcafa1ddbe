"""Roles of operators: each route states the role that it needs, and rejects lower ones."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from fairserve.platform.base.errors import PermissionDeniedError
from fairserve.platform.base.roles import ROLES
from fairserve.platform.console import incidents
from fairserve.platform.console.rendering import FOLDER
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.base import utc_now
from fairserve.platform.fleet.endpoints import HEALTH_PATHS
from fairserve.platform.serving.principals import calling_app
from fairserve.platform.tenancy.keys.schemas import AdminKeyCreate, AdminKeyPatch
from fairserve.platform.tenancy.keys.service import admin_keys
from fairserve.platform.tenancy.roles import NEEDED

KEYS = "/admin/keys"
PUBLIC = ("/console/sign-in", "/console/static/", "/docs", "/openapi.json")
"""Beginnings of paths that need no key and no session."""


def routes(router):
    """Yield all routes of an application, and whether app keys alone may use them."""
    for route in (each for each in router.routes if isinstance(each, APIRoute)):
        for_apps = calling_app in dependencies(route.dependant)
        yield from ((f"{method} {route.path}", for_apps) for method in route.methods)


def dependencies(dependant):
    """Return the functions that a route depends on, directly or not."""
    found = {each.call for each in dependant.dependencies}
    return found.union(*(dependencies(each) for each in dependant.dependencies))


class World:
    """A tenant with an app, and a key of each role."""

    def __init__(self, management):
        self.management = management
        self.tenant = management.new_tenant("acme")
        self.keys = {
            role: self.call("POST", KEYS, {"name": role, "role": role}, status=201)
            for role in ROLES
        }
        found = dict(routes(management.app))
        self.for_apps = {route for route, for_apps in found.items() if for_apps}
        self.routes = sorted(
            route
            for route in found
            if not route.split()[1].startswith(PUBLIC)
            and route.split()[1] not in {*HEALTH_PATHS, "/", "/console", "/console/"}
        )

    def call(self, method, path, body=None, *, role="admin", **more):
        key = self.keys[role]["api_key"] if hasattr(self, "keys") else self.management.admin_key
        return self.management.call(key, method, path, body, **more)

    def sign_in(self, role):
        """Sign the client in; return the token for its forms."""
        client = self.management.client
        client.cookies.clear()
        client.post("/console/sign-in", data={"key": self.keys[role]["api_key"]})
        page = client.get("/console/overview").text
        return re.search('name="csrf" value="([0-9a-f]{64})"', page)[1]

    def answer(self, route, role, csrf):
        """Send a request without content to a route, with ids that do not exist."""
        method, path = route.split()
        path = re.sub(r"\{[^}]*\}", "x", path)
        if path.startswith("/console"):
            form = {"data": {"csrf": csrf}} if method != "GET" else {}
            return self.management.client.request(method, path, follow_redirects=False, **form)
        headers = {"Authorization": f"Bearer {self.keys[role]['api_key']}"}
        tenant = {"tenant": self.tenant["id"]} if path.startswith("/v1") else {}
        return self.management.client.request(method, path, headers=headers, params=tenant)


@pytest.fixture
def world(management):
    return World(management)


def test_every_route_states_its_role(world):
    assert set(world.routes) - world.for_apps == set(NEEDED)
    assert "POST /v1/chat/completions" in world.for_apps
    reading = {route for route, role in NEEDED.items() if role == "viewer"}
    changing = {route for route in reading if not route.startswith("GET ")}
    assert changing == {"POST /console/sign-out"}


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_role_reaches_only_its_routes(world, role):
    """Streams are left out: they do not end, and their dependencies are those of their pages."""
    csrf = world.sign_in(role)
    checked = 0
    for route in world.routes:
        needed = NEEDED.get(route)
        if route == "POST /console/sign-out" or ("/stream" in route and needed == "viewer"):
            continue
        answer = world.answer(route, role, csrf)
        if needed is None or ROLES.index(needed) > ROLES.index(role):
            assert answer.status_code == 403, f"{route}: {answer.status_code}"
            assert needed is None or f"the role {needed}" in answer.text, route
            checked += 1
        else:
            assert answer.status_code not in (401, 403, 500), f"{route}: {answer.text}"
    assert checked > 50


@pytest.mark.parametrize("role", ROLES)
def test_pages_show_only_the_buttons_of_the_role(world, role):
    app = world.management.new_app(world.tenant)
    pages = [route.split()[1] for route in NEEDED if route.startswith("GET /console/")]
    pages = [page for page in pages if "{" not in page and not page.endswith(("stream", "report"))]
    pages += [
        f"/console/clients/tenants/{world.tenant['id']}",
        f"/console/clients/apps/{app['id']}",
        f"/console/clients/{world.tenant['id']}/{app['id']}/alma",
    ]
    world.sign_in(role)
    seen = set()
    for page in pages:
        text = world.management.client.get(page).text
        for place in re.findall(r'method="post" action="([^"]*)"', text):
            route = next(r for r in NEEDED if r.startswith("POST") and matches(r, place))
            assert ROLES.index(NEEDED[route]) <= ROLES.index(role), f"{page}: {route}"
            seen.add(route)
    assert ("POST /console/throttling" in seen) == (role != "viewer")
    assert ("POST /console/clients/apps/{app_id}" in seen) == (role == "admin")


def matches(route, path):
    pattern = re.sub(r"\{[^}]*:path\}", ".+", route.split()[1])
    return re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", pattern), path)


def test_templates_and_cards_name_existing_routes():
    named = {
        route
        for path in (*FOLDER.rglob("*.jinja"), Path(incidents.__file__))
        for route in re.findall(r'viewer\.may\(\s*"([^"]*)"\s*\)', path.read_text())
    }
    assert len(named) > 8
    assert named <= NEEDED.keys()


def test_a_changed_role_holds_at_once(world):
    operator = world.keys["operator"]
    world.call("POST", "/admin/jobs/x/run", role="operator", status=404)
    changed = world.call("PATCH", f"{KEYS}/{operator['id']}", {"role": "viewer"})
    assert (changed["role"], changed["name"]) == ("viewer", "operator")
    error = world.call("POST", "/admin/jobs/x/run", role="operator", status=403)["error"]
    assert error["code"] == "insufficient_role"
    assert "needs the role operator; yours is viewer" in error["message"]
    (entry,) = world.call("GET", "/admin/audit", action="key.change")["items"]
    assert (entry["before"]["role"], entry["after"]["role"]) == ("operator", "viewer")


def test_a_session_has_the_present_role_of_its_key(world):
    csrf = world.sign_in("operator")
    world.call("PATCH", f"{KEYS}/{world.keys['operator']['id']}", {"role": "viewer"})
    route = "POST /console/cluster/jobs/{job}/run"
    assert world.answer(route, "operator", csrf).status_code == 403


def test_an_expired_key_is_rejected_with_its_own_code(world):
    at = utc_now() + timedelta(hours=1)
    body = {"expires_at": at.isoformat(), "role": "viewer"}
    key = world.call("POST", KEYS, body, status=201)
    management = world.management
    management.call(key["api_key"], "GET", "/admin/tenants")
    authenticator = management.state.authenticator
    authenticator._now = lambda: at
    try:
        error = management.call(key["api_key"], "GET", "/admin/tenants", status=401)["error"]
    finally:
        authenticator._now = utc_now
    assert error["code"] == "expired_api_key", "although the key is in the cache"
    (failed,) = world.call("GET", "/admin/audit", action="key.failed")["items"]
    assert failed["target"] == key["id"]


def test_the_last_admin_key_keeps_its_role_and_has_no_expiry(world):
    first, admin = world.call("GET", KEYS)["items"][0], world.keys["admin"]
    world.call("DELETE", f"{KEYS}/{first['id']}")
    later = (utc_now() + timedelta(days=1)).isoformat()
    for change in ({"role": "operator"}, {"expires_at": later}):
        error = world.call("PATCH", f"{KEYS}/{admin['id']}", change, status=409)["error"]
        assert error["code"] == "last_admin_key", "keys of lower roles do not count"
    world.call("DELETE", f"{KEYS}/{admin['id']}", status=409)
    second = world.call("POST", KEYS, {"name": "second"}, status=201)
    changed = world.call("PATCH", f"{KEYS}/{admin['id']}", {"expires_at": later})
    assert (changed["role"], changed["expires_at"] is None) == ("admin", False)
    world.call("PATCH", f"{KEYS}/{admin['id']}", {"expires_at": None})
    world.call("DELETE", f"{KEYS}/{second['id']}")
    for change, status in (({"role": "owner"}, 400), ({"expires_at": "2020-01-01T00:00Z"}, 400)):
        world.call("PATCH", f"{KEYS}/{admin['id']}", change, status=status)
    world.call("PATCH", f"{KEYS}/{second['id']}", {"role": "viewer"}, status=409)


def test_a_key_makes_and_changes_no_key_of_a_higher_role(world):
    state = world.management.state
    principal = world.management.client.portal.call(
        state.authenticator.authenticate, world.keys["operator"]["api_key"]
    )
    admin = world.keys["admin"]["id"]
    with state.session_factory() as session:
        ring = admin_keys(session, principal, state.authenticator)
        for act in (
            lambda: ring.add(AdminKeyCreate(role="admin")),
            lambda: ring.change(admin, AdminKeyPatch(name="mine")),
            lambda: ring.revoke(admin),
            lambda: ring.rotate(0),
            lambda: ring.change(world.keys["viewer"]["id"], AdminKeyPatch(role="admin")),
        ):
            with pytest.raises(PermissionDeniedError, match="needs the role admin"):
                act()
        assert ring.add(AdminKeyCreate(role="viewer")).row.role == "viewer"
    assert not Viewer(replace(principal, role="viewer"), None, "", utc_now(), "").may(
        "POST /unknown"
    )
