"""The end user of a call: the body's fields first, then the headers that its app has chosen."""

import uuid

import pytest

ZOE = "zoà"


@pytest.fixture(scope="module")
def server(start_server, scripted):
    server = start_server("--worker-urls", ",".join(worker.url for worker in scripted))
    (server.app,) = server.admin("GET", "/admin/apps").json()["items"]
    return server


@pytest.fixture
def headers_of(server):
    """Change the headers that name the app's users."""
    path = f"/v1/apps/{server.app['id']}"

    def change(names):
        answer = server.request("PATCH", path, server.tenant_key, json={"user_headers": names})
        assert answer.status_code == 200, answer.text

    yield change
    change(None)


def chat(server, body=None, **headers):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}], **(body or {})}
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.post("/v1/chat/completions", body, headers=headers)


def user_of(server, body=None, **headers):
    """Return the user of a call, as the ledger has it."""
    call = uuid.uuid4().hex
    answer = chat(server, body, x_call_id=call, **headers)
    assert answer.status_code == 200, answer.text
    return server.row(name=call)["user_id"]


FIELDS = {"user": "a", "safety_identifier": "b", "metadata": {"user_id": "c"}}


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        ((), "a"),
        (("user",), "b"),
        (("user", "safety_identifier"), "c"),
        (("user", "safety_identifier", "metadata"), "d"),
    ],
)
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_the_first_that_is_not_empty_names_the_user(server, absent, expected, how):
    empty = {"user": "", "safety_identifier": "", "metadata": {"user_id": ""}}
    body = {name: value for name, value in FIELDS.items() if name not in absent}
    if how == "empty":
        body |= {name: empty[name] for name in absent}
    assert user_of(server, body, x_user_id="d") == expected


def test_nobody_named_is_the_app_itself(server):
    assert (
        user_of(server, {"user": None, "metadata": {"other": "x"}}, x_user_id="")
        == (server.app["id"])
    )


def test_an_app_chooses_its_headers_and_their_order(server, headers_of):
    headers_of(["X-OpenWebUI-User-Id", "x-second"])
    assert user_of(server, x_user_id="d") == server.app["id"], "at once, for a key that is cached"
    assert user_of(server, x_second="s", x_openwebui_user_id="o") == "o"
    assert user_of(server, x_second="s", x_openwebui_user_id="") == "s"
    headers_of([])
    assert user_of(server, x_user_id="d", x_second="s") == server.app["id"]


def test_an_id_has_one_spelling_wherever_it_is_named(server):
    expected = [ZOE] * 3
    assert [
        user_of(server, {"user": f" {ZOE}"}),
        user_of(server, {"safety_identifier": "zoa\u0300"}),
        user_of(server, x_user_id=ZOE.encode()),
    ] == expected


@pytest.mark.parametrize(
    "value", ["x" * 201, "mal\u200blory", "\u2003"], ids=["long", "ZW", "blank"]
)
@pytest.mark.parametrize("source", ["safety_identifier", "metadata.user_id", "x-user-id"])
def test_an_id_is_checked_wherever_it_is_named(server, source, value):
    if source == "x-user-id":
        answer = chat(server, x_user_id=value.encode())
    else:
        field, _, key = source.partition(".")
        answer = chat(server, {field: {key: value} if key else value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, source, "invalid_value")
    expected = chat(server, {"user": value}).json()["error"]["message"]
    assert error["message"] == expected.replace("user:", f"{source}:", 1)


@pytest.mark.parametrize("value", [7, ["a"], {"a": "b"}, True])
@pytest.mark.parametrize("source", ["safety_identifier", "metadata.user_id"])
def test_an_id_is_a_string(server, source, value):
    field, _, key = source.partition(".")
    body = {field: {key: value} if key else value}
    answer = chat(server, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, source)
    assert user_of(server, {"user": "a", **body}) == "a", "what does not decide is not checked"


def test_a_header_that_is_not_utf_8_is_rejected(server):
    answer = chat(server, x_user_id=ZOE.encode("latin-1"))
    assert answer.status_code == 400
    assert answer.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": "x-user-id",
        "code": "invalid_value",
    }


def test_a_run_is_opened_for_the_user_of_the_header(server):
    run = {"id": uuid.uuid4().hex}
    opened = server.post("/v1/interactions", run, headers={"X-User-Id": "ann"})
    assert opened.json()["user"] == "ann"
    named = server.post(
        "/v1/interactions", {"id": uuid.uuid4().hex, "user": "bob"}, headers={"X-User-Id": "ann"}
    )
    assert named.json()["user"] == "bob"
    wrong = server.post("/v1/interactions", {}, headers={"X-User-Id": "x" * 201})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-user-id")
    assert user_of(server, x_interaction_id=run["id"], x_user_id="ann") == "ann"
    assert user_of(server, x_interaction_id=run["id"]) == "ann", "its run's"
    other = chat(server, x_interaction_id=run["id"], x_user_id="mallory")
    assert other.status_code == 404, "no header takes over the run of another user"
    assert user_of(server, {"user": "ann"}, x_interaction_id=run["id"], x_user_id="mallory") == (
        "ann"
    )


def test_a_blocked_user_does_not_come_back_by_another_field(server):
    (tenant,) = server.admin("GET", "/admin/tenants").json()["items"]
    blocked = server.admin("PUT", f"/admin/users/{tenant['id']}/mallory", json={"blocked": True})
    assert blocked.status_code == 200
    for answer in (
        chat(server, {"safety_identifier": "mallory"}),
        chat(server, {"metadata": {"user_id": "mallory"}}),
        chat(server, x_user_id="mallory"),
        server.post(
            "/v1/completions",
            {"model": "scripted", "prompt": "ok", "safety_identifier": "mallory"},
        ),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "user_blocked")


def test_equal_bodies_of_two_users_are_two_requests(server):
    key = uuid.uuid4().hex
    first = chat(server, idempotency_key=key, x_user_id="ann")
    assert first.status_code == 200
    again = chat(server, idempotency_key=key, x_user_id="ann")
    assert again.headers["x-fairserve-replayed"] == "true"
    other = chat(server, idempotency_key=key, x_user_id="bob")
    assert other.status_code == 422, "the answer to ann's request is not bob's"
