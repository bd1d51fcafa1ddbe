"""Pages require a signed-in session, and forms must be posted from the session's own pages."""

import re

import pytest
from fastapi.testclient import TestClient

from fairserve.platform.console import guard
from fairserve.platform.console.routes import PARTS
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.schema import upgrade
from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings

SIGN_IN = {"/console/sign-in", "/console/sign-in/oidc", "/console/sign-in/oidc/callback"}
OPEN = {"/console", "/console/", *SIGN_IN}
ROUTES = [route for part in PARTS for route in part.router.routes]
CLOSED = [
    route
    for route in ROUTES
    if route.path not in OPEN and not route.path.startswith("/console/static/")
]


def app_of(**settings):
    """Return the shipped application without the services behind it."""
    return create_app(Settings(**settings), None)


@pytest.fixture(scope="module")
def anonymous(tmp_path_factory):
    """Return a browser without a session."""
    engine = connect(f"sqlite:///{tmp_path_factory.mktemp('data') / 'fairserve.sqlite3'}")
    upgrade(engine)
    app = app_of()
    app.state.session_factory = session_factory(engine)
    yield TestClient(app, follow_redirects=False)
    engine.dispose()


def calls(dependant):
    """Return all dependencies of a route, nested ones included."""
    yield dependant.call
    for each in dependant.dependencies:
        yield from calls(each)


def test_all_routes_are_found():
    assert len(CLOSED) > 30
    assert {"/console/overview", "/console/cluster/workers/{worker_id}/drain"} <= {
        route.path for route in CLOSED
    }


def test_anonymous_requests_are_redirected_to_sign_in(anonymous):
    for route in CLOSED:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        (method,) = route.methods
        answer = anonymous.request(method, path)
        where = f"{method} {path}"
        assert answer.status_code == 303, where
        assert answer.headers["location"].startswith("/console/sign-in"), where


def test_forms_are_accepted_from_own_pages_only():
    forms = [route for route in CLOSED if "POST" in route.methods]
    assert len(forms) > 10
    for route in forms:
        assert guard._form in set(calls(route.dependant)), route.path


def test_pages_are_not_in_the_api_schema(anonymous):
    paths = anonymous.get("/openapi.json").json()["paths"]
    assert paths
    assert not [path for path in paths if path.startswith("/console")]


def test_a_disabled_console_has_no_pages():
    answer = TestClient(app_of(console=False)).get("/console/sign-in")
    assert answer.status_code == 404
