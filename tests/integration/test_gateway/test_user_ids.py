"""A user has one id in every spelling on every endpoint; invisible characters are rejected."""

import re
from urllib.parse import quote

import httpx
import pytest
from gateway_server import ADMIN_KEY
from server_client import DEADLINE_S

NFC, NFD = "zo\u00e9", "zoe\u0301"
SPELLINGS = ["mallory ", " mallory", "mallory\u00a0", "\u2003mallory"]
UNSEEN = {
    "NUL": "mal\x00lory",
    "tab": "mallory\t",
    "C1 control": "mallory\x85",
    "zero-width space": "mallory\u200b",
    "zero-width joiner": "mal\u200dlory",
    "word joiner": "\u2060mallory",
    "byte order mark": "\ufeffmallory",
    "right-to-left override": "mallory\u202e",
    "left-to-right isolate": "\u2066mallory",
    "line separator": "mallory\u2028",
    "soft hyphen": "mal\u00adlory",
    "tag": "mallory\U000e0041",
    "hangul filler": "mallory\u3164",
    "variation selector": "mallory\ufe0f",
}


@pytest.fixture(scope="module")
def server(start_server, scripted):
    server = start_server("--worker-urls", ",".join(worker.url for worker in scripted))
    (server.tenant,) = server.admin("GET", "/admin/tenants").json()["items"]
    (server.app,) = server.admin("GET", "/admin/apps").json()["items"]
    for user in ("mallory", NFC):
        answer = server.admin("PUT", user_path(server, user), json={"blocked": True})
        assert answer.status_code == 200
    return server


@pytest.fixture(scope="module")
def browser(server):
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as browser:
        assert browser.post("/console/sign-in", data={"key": ADMIN_KEY}).status_code == 303
        yield browser


def user_path(server, user):
    return f"/admin/users/{server.tenant['id']}/{quote(user, safe='')}"


def chat(server, user, **headers):
    body = {"model": "scripted", "user": user, "messages": [{"role": "user", "content": "ok"}]}
    return server.post("/v1/chat/completions", body, headers=headers)


@pytest.mark.parametrize("user", [*SPELLINGS, NFD, f" {NFD} "])
def test_a_blocked_user_is_blocked_in_every_spelling(server, user):
    answer = chat(server, user)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["code"] == "user_blocked"
    other = server.post("/v1/completions", {"model": "scripted", "user": user, "prompt": "ok"})
    assert other.status_code == 403
    run = {"id": f"run of {user!r}", "user": user}
    assert server.post("/v1/interactions", run).status_code == 201
    unnamed = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    of_run = {"X-Interaction-Id": quote(run["id"])}
    assert server.post("/v1/chat/completions", unnamed, headers=of_run).status_code in (200, 403)


@pytest.mark.parametrize("user", UNSEEN.values(), ids=UNSEEN)
def test_invisible_characters_are_rejected(server, user):
    found = {
        "chat": chat(server, user),
        "completions": server.post(
            "/v1/completions", {"model": "scripted", "user": user, "prompt": "ok"}
        ),
        "interactions": server.post("/v1/interactions", {"user": user}),
        "user data": server.request(
            "GET", "/v1/user-data", server.tenant_key, params={"user": user}
        ),
        "erasure": server.request(
            "DELETE", "/v1/user-data", server.tenant_key, params={"user": user}
        ),
        "usage": server.request("GET", "/v1/usage", server.tenant_key, params={"user": user}),
        "users": server.admin("GET", user_path(server, user)),
        "change": server.admin("PUT", user_path(server, user), json={"weight": 2}),
        "reset": server.admin("DELETE", user_path(server, user)),
        "list": server.admin("GET", "/admin/users", params={"user": user}),
        "events": server.admin("GET", "/admin/throttling/events", params={"user": user}),
        "runs": server.admin("GET", "/admin/interactions", params={"user": user}),
    }
    for where, answer in found.items():
        assert answer.status_code == 400, (where, answer.text)
        error = answer.json()["error"]
        assert error["param"] == "user", (where, error)
        assert re.match(r"user: has U\+[0-9A-F]{4,5} at position \d; ", error["message"]), error
        assert error["message"].endswith("are not allowed: remove it")


def test_a_line_feed_is_rejected_in_bodies(server):
    assert chat(server, "mallory\n").status_code == 400


@pytest.mark.parametrize("user", ["mallory ", NFD])
def test_every_endpoint_normalises_ids(server, browser, user):
    normal = "mallory" if user.startswith("m") else NFC
    shown = server.admin("GET", user_path(server, user)).json()
    assert (shown["user"], shown["blocked"]) == (normal, True)
    (listed,) = server.admin("GET", "/admin/users", params={"user": user}).json()["items"]
    assert listed["user"] == normal
    data = server.request("GET", "/v1/user-data", server.tenant_key, params={"user": user})
    assert data.json()["user"] == normal
    assert data.json()["settings"]
    page = browser.get(f"/console/clients/{server.tenant['id']}/{server.app['id']}/{quote(user)}")
    assert page.status_code == 200
    assert "Unblock" in page.text


def test_settings_apply_to_every_spelling(server):
    changed = server.admin("PUT", user_path(server, " anna"), json={"weight": 2})
    assert changed.json()["user"] == "anna"
    assert server.admin("GET", user_path(server, "anna")).json()["weight"] == 2
    server.admin("DELETE", user_path(server, "anna "))
    assert server.admin("GET", user_path(server, "anna")).json()["updated_at"] is None


def test_the_ledger_stores_the_normalised_id(server):
    assert chat(server, " berta ").status_code == 200
    assert server.row(user_id="berta")


@pytest.mark.parametrize("user", ["  ", "x" * 201])
def test_blank_and_long_ids_are_rejected(server, user):
    for answer in (chat(server, user), server.admin("GET", user_path(server, user))):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "user"


def test_visible_characters_are_unchanged(server):
    for user in ("Anna", "anna@example.org", "team/zoé 2", "用户", "😀", "x" * 200):
        assert server.admin("GET", user_path(server, user)).json()["user"] == user
    assert chat(server, "").status_code == 200, "nobody is named"
