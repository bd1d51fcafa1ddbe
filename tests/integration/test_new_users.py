"""An app with a limit per user may begin runs of a bounded number of new users a minute."""

import collections
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from console_load import SMALL, WORDS
from page_server import PageServer
from processes import eventually
from server_client import NO_TLS

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.platform.tenancy.apps.limits import DEFAULT_NEW_USERS

INVENTED = 200
NAMES = iter(range(1000))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server whose minute never ends."""
    with PageServer(tmp_path_factory.mktemp("server"), **{**SMALL, "kv_blocks": 32}) as running:
        yield running


def new_app(server, **limits):
    return server.new_app(name=f"app {next(NAMES)}", limits=limits)


class Flood:
    """Calls of many users at once while another app overloads the workers."""

    def __init__(self, server):
        self.server = server
        self.noise = new_app(server)["api_key"]

    def call(self, key, user, text="ok"):
        body = {
            "model": BUILTIN_MODEL_NAME,
            "user": user,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 5,
        }
        headers = {"Authorization": f"Bearer {key}"}
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def __enter__(self):
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(
            base_url=self.server.url, timeout=90, verify=NO_TLS, limits=limits
        )
        self.threads = ThreadPoolExecutor(INVENTED + 10)
        return self

    def overload(self):
        held = [
            self.threads.submit(self.call, self.noise, "noise", "hold " * WORDS) for _ in range(8)
        ]
        eventually(
            lambda: self.server.call(self.server.admin_key, "GET", "/admin/cluster")["overloaded"]
        )
        return held

    def of_many(self, key, users=INVENTED):
        return [self.threads.submit(self.call, key, f"invented-{n}") for n in range(users)]

    def rejects(self, calls, count):
        """Wait until the given number of calls is rejected."""
        eventually(
            lambda: count == sum(call.done() and call.result().status_code == 429 for call in calls)
        )

    def finish(self, calls):
        """Release all calls; return their answers by status."""

        def done():
            self.server.release()
            return all(call.done() for call in calls)

        eventually(done)
        return collections.Counter(call.result().status_code for call in calls)

    def __exit__(self, *_):
        self.server.release()
        self.threads.shutdown()
        self.client.close()


@pytest.fixture
def flood(server):
    with Flood(server) as flood:
        yield flood


def test_invented_users_are_bounded_and_known_ones_are_not(server, flood):
    app = new_app(server, user_rpm=5)
    assert app["limits"] == {
        "user_rpm": 5,
        "app_rpm": None,
        "new_users_per_minute": None,
        "new_users_in_force": DEFAULT_NEW_USERS,
    }
    key = app["api_key"]
    assert flood.call(key, "anna").status_code == 200
    weighed = f"/admin/users/{app['tenant_id']}/invented-0"
    server.call(
        server.admin_key, "PUT", weighed, {"weight": 2}
    )  # this user has settings of its own
    held = flood.overload()
    invented = flood.of_many(key)
    rejected = INVENTED - DEFAULT_NEW_USERS  # anna has one place; the configured user needs none
    flood.rejects(invented, rejected)
    anna = [flood.threads.submit(flood.call, key, "anna") for _ in range(2)]
    assert flood.finish([*held, *anna]) == {200: 10}
    assert flood.finish(invented) == {200: INVENTED - rejected, 429: rejected}
    answer = next(call.result() for call in invented if call.result().status_code == 429)
    error = answer.json()["error"]
    assert error["code"] == "overloaded"
    assert (
        f"31 new users of this app in 60 s; the limit is {DEFAULT_NEW_USERS}" in (error["message"])
    )
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["x-fairserve-retry"] == "best_effort"
    query = {"app": app["id"], "reason": "overloaded_new_users_limit"}
    eventually(
        lambda: (
            server.call(server.admin_key, "GET", "/admin/throttling/events", **query)["total"]
            == rejected
        )
    )


def test_without_overload_all_users_are_served(server, flood):
    key = new_app(server, user_rpm=5)["api_key"]
    answers = [flood.call(key, f"user-{n}") for n in range(DEFAULT_NEW_USERS + 5)]
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize(
    ("limits", "served"),
    [
        ({"user_rpm": 5, "new_users_per_minute": 3}, 3),
        ({"user_rpm": 5, "new_users_per_minute": 1_000_000}, 40),
        ({"user_rpm": 5, "app_rpm": 7}, 7),
        ({}, 40),
    ],
    ids=str,
)
def test_the_bound_is_explicit_or_derived(server, flood, limits, served):
    key = new_app(server, **limits)["api_key"]
    held = flood.overload()
    invented = flood.of_many(key, 40)
    flood.rejects(invented, 40 - served)
    flood.finish([*held])
    assert flood.finish(invented).get(200) == served


def test_a_change_applies_to_the_next_call(server):
    app = new_app(server, user_rpm=5)
    path = f"/v1/apps/{app['id']}"

    def change(**limits):
        return server.call(app["tenant_key"], "PATCH", path, {"limits": limits})["limits"]

    assert change(new_users_per_minute=100)["new_users_in_force"] == 100
    assert change(new_users_per_minute=None)["new_users_in_force"] == DEFAULT_NEW_USERS
    assert change(app_rpm=60)["new_users_in_force"] is None
    assert change(app_rpm=None, user_rpm=None)["new_users_in_force"] is None
    headers = {"Authorization": f"Bearer {app['tenant_key']}"}
    wrong = httpx.patch(
        f"{server.url}{path}",
        json={"limits": {"new_users_per_minute": 0}},
        headers=headers,
        verify=NO_TLS,
    )
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "limits.new_users_per_minute"
