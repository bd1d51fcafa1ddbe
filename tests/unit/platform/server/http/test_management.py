"""Test the places of requests that make no call, and the turns of all: bounds, bodies and answers."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.responses import Response
from until import settle, turn

from fairserve.engine.wire.loop_turns import TURNS_PER_PASS, LoopTurns
from fairserve.platform.base.bulkhead import is_management
from fairserve.platform.base.errors import AuthenticationError
from fairserve.platform.server.http.call_routes import CallRoutes
from fairserve.platform.server.http.management import (
    KEY_REQUESTS,
    PLACES,
    TENANT_PLACES,
    TENANT_REQUESTS,
    Management,
)
from fairserve.platform.serving.bodies import BodyMemory
from fairserve.platform.serving.call_router import CallRoute
from fairserve.platform.tenancy.auth import Principal

CALL_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages/count_tokens")
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"", "more_body": False}


class Decisions:
    """A decision service that allows every app."""

    def max_body_bytes(self, principal):
        return None

    def limit_headers(self, principal):
        return {}


def served(app):
    """Return what serves all requests with ``app``: calls, and others in places."""
    turns = LoopTurns()
    rest = Management(app, lambda request, error: Response(status_code=error.status), turns)

    async def answer(call):
        return app

    routes = [CallRoute(path, answer) for path in CALL_PATHS]
    return CallRoutes(rest, routes, BodyMemory(1000, 1.0, 1000), 1000, turns)


def application():
    """Return an application with the state that calls need."""
    return SimpleNamespace(
        state=SimpleNamespace(draining=asyncio.Event(), decisions=Decisions(), authenticator=None)
    )


async def no_body():
    """Receive a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


class World:
    """Requests to an application that answers when the test lets it."""

    def __init__(self):
        self.gate = served(self._app)
        self.running, self.as_management, self.statuses = [], [], []
        self._tasks = []

    async def _app(self, scope, receive, send):
        self.running.append(scope["name"])
        self.as_management.append(is_management())
        await scope["answers"].wait()
        await send(START)
        await scope["ends"].wait()
        await send(BODY)
        self.running.remove(scope["name"])

    async def sends(self, tenant, *, key="k", path="/v1/apps", method="GET", body=None, number=1):
        """Send requests; return the last one's scope, whose events let it answer and end."""
        for _ in range(number):
            headers = [] if body is None else [(b"content-length", b"2")]
            scope = {
                "type": "http",
                "method": method,
                "path": path,
                "headers": headers,
                "app": application(),
                "state": {"principal": Principal("app", tenant, "app", f"{tenant}{key}", "sk")},
                "name": tenant,
                "answers": asyncio.Event(),
                "ends": asyncio.Event(),
            }
            receive = no_body if body is None else body.get
            self._tasks.append(asyncio.create_task(self.gate(scope, receive, self._send)))
            await settle()
        return scope

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])

    async def close(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.close()


async def test_a_tenant_that_fills_its_share_leaves_places_for_others(world):
    first = await world.sends("flood")
    await world.sends("flood", number=20)
    await world.sends("other")
    assert world.running == ["flood"] * TENANT_PLACES + ["other"]
    first["answers"].set()
    await settle()
    assert world.running.count("flood") == TENANT_PLACES + 1, "the answer needs no place"
    assert world.statuses == [200]


async def test_requests_of_many_tenants_wait_in_turns(world):
    first = await world.sends("a")
    tenants = PLACES // TENANT_PLACES
    for tenant in "abdefg"[:tenants]:
        await world.sends(tenant, number=20)
    assert len(world.running) == PLACES
    await world.sends("c")
    assert "c" not in world.running
    first["answers"].set()
    first["ends"].set()
    await settle()
    assert len(world.running) == PLACES
    assert world.running[-1] in ("a", "c")


@pytest.mark.parametrize(("keys", "limit"), [(1, KEY_REQUESTS), (50, TENANT_REQUESTS)])
async def test_requests_of_a_key_and_of_a_tenant_are_bounded(world, keys, limit):
    for number in range(limit):
        await world.sends("flood", key=str(number % keys))
    assert world.statuses == []
    await world.sends("flood", key="0" if keys == 1 else "new")
    assert world.statuses == [429]
    await world.sends("other")
    assert world.running[-1] == "other"


async def test_a_body_that_has_not_arrived_holds_no_place(world):
    body = asyncio.Queue()
    await world.sends("slow", method="PUT", body=body, number=TENANT_PLACES)
    await world.sends("slow")
    assert world.running == ["slow"], "only the one without a body"
    body.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
    await settle()
    assert world.running == ["slow"] * 2


@pytest.mark.parametrize(
    ("method", "path", "management"),
    [
        ("GET", "/v1/usage", True),
        ("GET", "/v1/responses/resp_1", True),
        ("POST", "/v1/batches", True),
        ("DELETE", "/v1/files/file_1", True),
        ("GET", "/admin/tenants", True),
        ("GET", "/metrics", True),
        ("POST", "/v1/files", True),
        ("POST", "/v1/chat/completions", False),
        ("POST", "/v1/responses", False),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/v1/interactions", False),
        ("GET", "/v1/models", False),
        ("GET", "/health/readiness", False),
    ],
)
async def test_which_requests_use_the_threads_and_connections_of_management(
    world, method, path, management
):
    await world.sends("a", method=method, path=path)
    assert world.as_management == [management]


NO_KEY = {"key_error": AuthenticationError("no key")}
CALL = {"method": "POST", "path": "/v1/chat/completions"}


def of_tenant(name):
    return {"principal": Principal("app", name, "app", name, "sk")}


@pytest.mark.parametrize(
    "crowd",
    [
        {"path": "/nothing"},
        {"path": "/console/apps"},
        {"path": "/v1/apps"},
        CALL,
        {**CALL, "state": of_tenant("crowd")},
    ],
)
async def test_a_crowd_begins_a_bounded_number_of_requests_in_each_pass_of_the_loop(crowd):
    began = []

    async def app(scope, receive, send):
        began.append(scope["name"])

    gate = served(app)

    async def send(message):
        """Note an answer without the application: the key is not valid."""
        if message["type"] == "http.response.start":
            began.append("crowd")

    def request(name, *, path, method="GET", state=NO_KEY):
        scope = {"type": "http", "method": method, "path": path, "headers": [], "name": name}
        scope |= {"client": (name, 1), "state": dict(state), "app": application()}
        return asyncio.create_task(gate(scope, no_body, send))

    tasks = [request("crowd", **crowd) for _ in range(80)]
    await turn()
    tasks.append(request("other", path="/nothing"))
    tasks.append(request("call", **CALL, state=of_tenant("acme")))
    passes = 3
    for _ in range(passes + 1):  # and one in which those that have their turn go on
        await turn()
    assert {"other", "call"} <= set(began)
    assert 0 < began.count("crowd") <= passes * TURNS_PER_PASS
    await asyncio.gather(*tasks)
    assert began.count("crowd") == 80
