"""Pages in browsers: preflights for the origins of all apps, answers for those of the caller's."""

import uuid

import pytest
from gateway_server import ADMIN_KEY

OWN, OTHER, NOBODY = "https://own.example", "https://other.example", "https://nobody.example"
CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}


@pytest.fixture(scope="module")
def server(start_server, scripted):
    server = start_server("--worker-urls", ",".join(worker.url for worker in scripted))
    server.own, server.other = (
        new_app(server, name, origins=[origin]) for name, origin in (("own", OWN), ("other", OTHER))
    )
    return server


def new_app(server, name, origins):
    body = {
        "name": name,
        "profile": {"stages": [{"input_tokens": 9, "output_tokens": 3}]},
        "cors_origins": origins,
    }
    answer = server.request("POST", "/v1/apps", server.tenant_key, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def preflight(server, origin, path=CHAT, **more):
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        **more,
    }
    return server.http.options(path, headers=headers)


def cors_of(answer):
    return {name for name in answer.headers if name.startswith("access-control-")}


def chat(server, app, origin=OWN, **more):
    headers = {} if origin is None else {"Origin": origin}
    return server.post(CHAT, BODY | more, app["api_key"], headers=headers)


@pytest.mark.parametrize("origin", [OWN, OTHER])
def test_a_preflight_is_answered_for_the_origin_of_any_app(server, origin):
    answer = preflight(server, origin)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == origin
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == (
        "authorization,content-type,x-stainless-os"
    )
    assert "access-control-allow-credentials" not in answer.headers
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    "origin", [NOBODY, "null", "https://own.example.evil", "http://own.example"]
)
def test_no_other_origin_gets_an_answer(server, origin):
    assert cors_of(preflight(server, origin)) == set()


@pytest.mark.parametrize("path", ["/admin/tenants", "/console", "/console/sign-in", "/docs", "/v1"])
def test_the_console_and_admin_routes_have_no_cors(server, path):
    assert cors_of(preflight(server, OWN, path)) == set()
    answer = server.http.get(path, headers={"Origin": OWN, "Authorization": f"Bearer {ADMIN_KEY}"})
    assert cors_of(answer) == set()


def test_headers_that_are_no_names_are_not_echoed(server):
    answer = preflight(server, OWN, **{"Access-Control-Request-Headers": "a;b"})
    assert "access-control-allow-headers" not in answer.headers


def test_options_without_the_request_headers_of_a_preflight_is_no_preflight(server):
    assert server.http.options(CHAT, headers={"Origin": OWN}).status_code == 405


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_names_the_origin_of_its_app_only(server, stream):
    answer = chat(server, server.own, stream=stream)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == OWN
    assert "Origin" in answer.headers["vary"]
    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
    readable = {
        name
        for name in answer.headers
        if name.startswith(("x-fairserve-", "x-ratelimit-"))
        or name in ("x-interaction-id", "x-call-id")
    }
    assert {"x-interaction-id", "x-fairserve-worker"} <= readable <= exposed
    assert "content-length" not in exposed
    for origin in (OTHER, NOBODY, "null"):
        other = chat(server, server.own, origin, stream=stream)
        assert (other.status_code, cors_of(other)) == (200, set())
        assert "Origin" in other.headers["vary"], "or a cache gives it to its own page"
    assert cors_of(chat(server, server.own, None, stream=stream)) == set()


def test_errors_of_an_app_can_be_read(server):
    wrong = chat(server, server.own, max_tokens=0)
    assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, OWN)
    missing = server.request(
        "GET", "/v1/models/none", server.own["api_key"], headers={"Origin": OWN}
    )
    assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, OWN)
    large = server.http.post(
        CHAT,
        content=b"x" * (65 << 20),
        headers={"Origin": OWN, "Authorization": f"Bearer {server.own['api_key']}"},
    )
    assert (large.status_code, large.headers["access-control-allow-origin"]) == (413, OWN)


def test_retry_after_can_be_read(server):
    app = new_app(server, f"limited {uuid.uuid4().hex}", [OWN])
    limit = {"contract": {"rpm_limit": 1}}
    path = f"/v1/apps/{app['id']}"
    assert server.request("PATCH", path, server.tenant_key, json=limit).status_code == 200
    assert chat(server, app).status_code == 200
    limited = chat(server, app)
    assert limited.status_code == 429
    exposed = limited.headers["access-control-expose-headers"].split(", ")
    assert {"retry-after", "x-fairserve-retry", "x-ratelimit-limit-requests"} <= set(exposed)


def test_an_answer_without_an_app_has_no_header(server):
    unknown = server.post(CHAT, BODY, "sk-fs-p-unknown", headers={"Origin": OWN})
    assert (unknown.status_code, cors_of(unknown)) == (401, set())
    tenant = server.request("GET", "/v1/apps", server.tenant_key, headers={"Origin": OWN})
    assert (tenant.status_code, cors_of(tenant)) == (200, set())


def test_a_change_holds_at_once(server):
    app = new_app(server, f"changing {uuid.uuid4().hex}", [])
    path, new = f"/v1/apps/{app['id']}", f"https://{uuid.uuid4().hex}.example"
    assert cors_of(preflight(server, new)) == set()
    assert cors_of(chat(server, app, new)) == set()

    def change(**body):
        answer = server.request("PATCH", path, server.tenant_key, json=body)
        assert answer.status_code == 200, answer.text

    change(cors_origins=[new])
    assert preflight(server, new).status_code == 204
    assert chat(server, app, new).headers["access-control-allow-origin"] == new
    change(suspended=True)
    assert cors_of(preflight(server, new)) == set()
    change(suspended=False)
    assert preflight(server, new).status_code == 204
    change(cors_origins=[])
    assert cors_of(preflight(server, new)) == set()
    assert cors_of(chat(server, app, new)) == set()
