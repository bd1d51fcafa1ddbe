"""No page is open to strangers, and no form is taken that is not from the page's own sign-in."""

import pytest

from fairserve.platform.console import guard
from fairserve.platform.console.router import PARTS

OPEN = {"/console", "/console/", "/console/sign-in"}
VIEWERS = {guard._viewer, guard._admin}


ROUTES = [route for part in PARTS for route in part.router.routes]


def calls(dependant):
    """Everything that a request must get through."""
    yield dependant.call
    for each in dependant.dependencies:
        yield from calls(each)


def test_the_walk_finds_the_routes():
    assert len(ROUTES) > 30
    assert {"/console/overview", "/console/cluster/workers/{worker_id}/drain"} <= {
        route.path for route in ROUTES
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_each_knows_who_asks(route):
    needed = set(calls(route.dependant))
    if route.path in OPEN or route.path.startswith("/console/static/"):
        return
    assert needed & VIEWERS
    assert route.methods <= {"GET", "POST"}
    if "POST" in route.methods:
        assert guard._form in needed
