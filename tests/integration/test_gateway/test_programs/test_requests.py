"""Invalid programs are rejected with the error named, and leave nothing behind."""

import pytest
from processes import eventually

from .asking import ended, node, read, rows, started, submit, texts


def test_the_run_of_a_program_accepts_no_other_calls(server, worker):
    run = started(server, node("a", "hold mine"))
    eventually(lambda: "hold mine" in texts(worker))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    answer = server.post("/v1/chat/completions", body, headers={"X-Interaction-Id": run})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "program_run")
    answer = server.post(f"/v1/interactions/{run}/close", None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "program_run")
    answer = submit(server, node("a", "say x"), id=run)
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, "id")
    other = server.new_key("another app")
    for method, part in (("GET", ""), ("GET", "/graph"), ("GET", "/events"), ("DELETE", "")):
        path = f"/v1/interactions/{run}{part}"
        assert server.request(method, path, other).status_code == 404, path
    same = submit(server, node("a", "say theirs"), id=run, key=other)
    assert same.status_code == 201
    worker.release()
    assert ended(server, run)["program"]["result"] == {"a": "one two three"}


def test_a_closed_run_is_not_reused(server):
    run = started(server, node("a", "say once only"))
    ended(server, run)
    assert submit(server, node("a", "say x"), id=run).status_code == 409
    server.post("/v1/interactions", {"id": "closed"})
    server.post("/v1/interactions/closed/close", None)
    answer = submit(server, node("a", "say x"), id="closed")
    assert answer.status_code == 409
    assert not rows(server, "programs", id="closed")


MANY = [node(f"n{number}", "say x") for number in range(100_000)]
WRONG = {
    "no nodes": ({"nodes": []}, 400, "nodes"),
    "nodes are no list": ({"nodes": {"a": 1}}, 400, "nodes"),
    "a result without nodes": ({"result": "a"}, 400, "nodes"),
    "a cycle": ({"nodes": [node("a", "{{b.output}}"), node("b", "{{a.output}}")]}, 400, "nodes"),
    "itself": ({"nodes": [node("a", "{{a.output}}")]}, 400, "nodes[0].messages[0].content"),
    "an id twice": ({"nodes": [node("a", "x"), node("a", "y")]}, 400, "nodes[1].id"),
    "an unknown parent": ({"nodes": [node("a", "x", parents=["b"])]}, 400, "nodes[0].parents[0]"),
    "nowhere": ({"nodes": [node("a", "{{b.output}}")]}, 400, "nodes[0].messages[0].content"),
    "no ancestor": (
        {"nodes": [node("a", "x"), node("b", "y"), node("c", "{{a.output}}", parents=["b"])]},
        400,
        "nodes[2].messages[0].content",
    ),
    "an expression": ({"nodes": [node("a", "{{ 7 * 7 }}")]}, 400, "nodes[0].messages[0].content"),
    "too many nodes": ({"nodes": MANY[:1001]}, 400, "nodes"),
    "an unknown field": ({"nodes": [node("a", "x", depth=1)]}, 400, "nodes[0].depth"),
    "an unknown field of the run": ({"nodes": [node("a", "x")], "deep": 1}, 400, "deep"),
    "a wide map": (
        {"nodes": [node("a", "x"), node("b", "y", map={"over": "a", "limit": 10**6})]},
        400,
        "nodes[1].map.limit",
    ),
    "sampling that no call may have": (
        {"nodes": [node("a", "x"), node("b", "x", sampling={"temperature": 9})]},
        400,
        "nodes[1].sampling.temperature",
    ),
    "a field of the platform": (
        {"nodes": [node("a", "x", sampling={"stream": True})]},
        400,
        "nodes[0].sampling.stream",
    ),
    "a reserved field": (
        {"nodes": [node("a", "x", sampling={"vllm_xargs": {}})]},
        400,
        "nodes[0].sampling.vllm_xargs",
    ),
    "a model that is not served": (
        {"nodes": [node("a", "x"), node("b", "x", model="other")]},
        404,
        "nodes[1].model",
    ),
    "a sink": ({"nodes": [node("a", "x")], "sink": "a"}, 400, "sink"),
    "a long id": ({"nodes": [node("a", "x")], "id": "i" * 10_000}, 400, "id"),
    "a control character": ({"nodes": [node("a", "x")], "id": "a\nb"}, 400, "id"),
    "a user that is none": ({"nodes": [node("a", "x")], "user": 7}, 400, "user"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_invalid_program_leaves_nothing_behind(server, what):
    body, status, param = WRONG[what]
    run = "wrong-" + what.replace(" ", "-")
    answer = server.post("/v1/interactions", {"model": "scripted", "id": run, **body})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 500
    _nothing_is_left(server, run)


def _nothing_is_left(server, run):
    assert read(server, run).status_code == 404
    assert not rows(server, "programs", id=run)
    listed = server.request("GET", "/v1/interactions?limit=1000", server.app_key).json()["items"]
    assert run not in {each["id"] for each in listed}


@pytest.mark.parametrize(
    ("nodes", "status", "code"),
    [(MANY, 400, "invalid_program"), ([node("a", "x" * 10_000_000)], 413, "body_too_large")],
)
def test_a_huge_program_is_rejected(server, nodes, status, code):
    body = {"model": "scripted", "nodes": nodes, "id": "huge"}
    answer = server.post("/v1/interactions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    _nothing_is_left(server, "huge")


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b'{"nodes": [' + b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_json_object_is_rejected(server, raw):
    headers = {"content-type": "application/json"}
    path = "/v1/interactions"
    answer = server.request("POST", path, server.app_key, content=raw, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_json")
