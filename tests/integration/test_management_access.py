"""User headers, origins of pages and rules of runs, as settings of the app."""

import re
from unittest import mock

import pytest
from sqlalchemy import select

from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.tenancy.apps import service

LISTS = {"user_headers": ["x-user-id"], "cors_origins": [], "run_rules": None}
"""The fields and their defaults."""


@pytest.fixture
def world(management):
    management.acme = management.new_tenant("acme")
    management.chat = management.new_app(management.acme)
    management.path = f"/v1/apps/{management.chat['id']}"
    return management


def patch(world, **body):
    return world.call(world.acme["api_key"], "PATCH", world.path, body)


def test_a_list_is_set_replaced_and_reset(world):
    assert {name: world.chat[name] for name in LISTS} == LISTS
    given = {"user_headers": ["X-A", "x-b", "x-a"], "cors_origins": ["https://A.example:443"]}
    given["run_rules"] = ["metadata", "aliases", "aliases"]
    stored = {"user_headers": ["x-a", "x-b"], "cors_origins": ["https://a.example"]}
    stored["run_rules"] = ["aliases", "metadata"]
    changed = patch(world, **given)
    assert {name: changed[name] for name in LISTS} == stored
    assert patch(world, name="other")["cors_origins"] == ["https://a.example"], "it stays"
    assert patch(world, user_headers=[])["user_headers"] == []
    assert patch(world, user_headers=None)["user_headers"] == ["x-user-id"]
    assert patch(world, cors_origins=None)["cors_origins"] == []
    new = world.new_app(world.acme, "new", **given)
    assert {name: new[name] for name in LISTS} == stored
    read = world.call(world.admin_key, "GET", f"/v1/apps/{new['id']}", tenant=world.acme["id"])
    assert {name: read[name] for name in LISTS} == stored


def test_each_change_is_in_the_audit_log(world):
    patch(world, user_headers=["x-a"], cors_origins=["http://localhost:3000"], run_rules=[])
    with world.state.session_factory() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "app.change")).one()
    assert {name: entry.before[name] for name in LISTS} == LISTS
    assert {name: entry.after[name] for name in LISTS} == {
        "user_headers": ["x-a"],
        "cors_origins": ["http://localhost:3000"],
        "run_rules": [],
    }


NAMES_NO_USER = [
    "",
    "x user",
    "x:user",
    "x-us\ner",
    "naïve",
    "x" * 65,
    "Authorization",
    "cookie",
    "x-api-key",
    "Idempotency-Key",
    "X-Interaction-Id",
    "x-litellm-trace-id",
    "x-fairserve-user",
    "x-forwarded-for",
    "sec-fetch-user",
    "content-type",
]
NO_ORIGINS = [
    "*",
    "null",
    "example.org",
    "https://",
    "https://a.example/",
    "https://a.example/path",
    "https://a.example?x",
    "https://user@a.example",
    "https://*.example",
    "https://a..example",
    "https://-a.example",
    "https://a.example:0",
    "https://a.example:70000",
    "https://a.example:",
    "https://[::1",
    "https://[1::2::3]",
    "https://münchen.example",
    "ftp://a.example",
    "file:///etc",
    "https://a.example\r\nx: y",
    "https://" + "a." * 100 + "example",
]
AS_BROWSERS_SEND_IT = {
    "http://localhost:3000": "http://localhost:3000",
    "http://a.example:80": "http://a.example",
    "https://a.example:80": "https://a.example:80",
    "HTTPS://A.Example": "https://a.example",
    "https://xn--mnchen-3ya.example": "https://xn--mnchen-3ya.example",
    "http://127.0.0.1:08080": "http://127.0.0.1:8080",
    "http://[::1]:5173": "http://[::1]:5173",
}


def test_a_header_with_another_meaning_names_no_user(world):
    for name in NAMES_NO_USER:
        body = {"user_headers": ["x-a", name]}
        world.rejected(world.acme["api_key"], "PATCH", world.path, body, param="user_headers.1")
        assert world.call(world.acme["api_key"], "GET", world.path)["user_headers"] == ["x-user-id"]


def test_what_is_no_origin_is_rejected(world):
    for origin in NO_ORIGINS:
        body = {"cors_origins": ["https://a.example", origin]}
        world.rejected(world.acme["api_key"], "PATCH", world.path, body, param="cors_origins.1")
        assert world.call(world.acme["api_key"], "GET", world.path)["cors_origins"] == []


def test_an_origin_is_kept_as_browsers_send_it(world):
    for given, stored in AS_BROWSERS_SEND_IT.items():
        assert patch(world, cors_origins=[given])["cors_origins"] == [stored]


def test_the_console_sets_both_lists(world):
    client, place = world.client, f"/console/clients/apps/{world.chat['id']}"
    client.post("/console/sign-in", data={"key": world.acme["api_key"]})
    csrf = re.search('name="csrf" value="([0-9a-f]{64})"', client.get(place).text)[1]

    def post(headers, origins, rules=""):
        lists = {"user_headers": headers, "cors_origins": origins, "run_rules": rules}
        form = {"csrf": csrf, "action": "requests", **lists}
        return client.post(place, data=form, follow_redirects=False)

    assert post("X-A\r\n\r\n x-b \r\n", "https://A.example:443").status_code == 303
    app = world.call(world.acme["api_key"], "GET", world.path)
    assert app["user_headers"] == ["x-a", "x-b"]
    assert app["cors_origins"] == ["https://a.example"]
    answer = post("x-a\nauthorization", "https://a.example\nhttps://b.example/path")
    assert answer.status_code == 400
    assert "Line 2: Invalid: authorization has another meaning" in answer.text
    assert (
        len(re.findall(r'class="wrong" id="(?:user_headers|cors_origins)-wrong"', answer.text)) == 2
    )
    assert "https://b.example/path</textarea>" in answer.text, "the entries are kept"
    for text, rules in (("none", []), ("metadata\naliases", ["aliases", "metadata"]), ("", None)):
        assert post("x-a", "", text).status_code == 303
        app = world.call(world.acme["api_key"], "GET", world.path)
        assert app["run_rules"] == rules
        shown = re.search(r'id="run_rules"[^>]*>\n([^<]*)<', client.get(place).text)[1]
        assert shown == "\n".join(["none"] if rules == [] else rules or [])
    assert "whichever" in post("x-a", "", "whichever").text
    assert post("", "").status_code == 303
    app = world.call(world.acme["api_key"], "GET", world.path)
    assert (app["user_headers"], app["cors_origins"]) == ([], [])


def test_lists_have_bounds(world):
    key = world.acme["api_key"]
    headers, origins = [f"x-{n}" for n in range(5)], [f"https://a{n}.example" for n in range(17)]
    assert patch(world, user_headers=headers[:4], cors_origins=origins[:16])
    for body in ({"user_headers": headers}, {"cors_origins": origins}):
        error = world.call(key, "PATCH", world.path, body, status=400)["error"]
        assert error["param"] in body


def test_the_origins_of_a_tenant_have_a_bound(world):
    body = {"cors_origins": ["https://a.example", "https://b.example"]}
    with mock.patch.object(service, "MAX_TENANT_ORIGINS", 3):
        patch(world, **body)
        patch(world, **body)  # its own are not counted twice
        other = world.new_app(world.acme, "other", cors_origins=["https://c.example"])
        path = f"/v1/apps/{other['id']}"
        error = world.call(world.acme["api_key"], "PATCH", path, body, status=409)["error"]
        assert (error["code"], error["param"]) == ("too_many_origins", "cors_origins")
        assert world.new_app(world.new_tenant("beta"), **body)["cors_origins"]
