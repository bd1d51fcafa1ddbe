"""Runs of clients that name no parents are recognised in real traffic, and readable while they run."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from xml.etree import ElementTree

import pytest
from processes import eventually
from server_client import PROFILE
from sse import data_of

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(start_server, worker):
    return start_server("--worker-urls", worker.url)


@pytest.fixture(scope="module")
def restless(start_server, worker):
    """Return a second server in front of the same worker, where idle runs of the app end soon."""
    server = start_server("--worker-urls", worker.url)
    (app,) = server.request("GET", "/v1/apps", server.tenant_key).json()["items"]
    change = {"profile": {**PROFILE, "idle_timeout_s": 0.2}}
    answer = server.request("PATCH", f"/v1/apps/{app['id']}", server.tenant_key, json=change)
    assert answer.status_code == 200, answer.text
    eventually(partial(_ends_soon, server, count()))
    return server


def _ends_soon(server, numbers):
    """Return whether a new run ends soon.

    A poll for profiles that began before the change may have sent the former one after it.
    """
    run = f"settles-{next(numbers)}"
    call(server, run, "a", user("ok a"))

    def ended():
        path = f"/v1/interactions/{run}"
        return server.request("GET", path, server.app_key).json()["state"] == "complete"

    try:
        return eventually(ended, deadline_s=3)
    except AssertionError:
        return False


def user(text):
    return {"role": "user", "content": text}


def call(server, run, agent, *messages, key=None, stream=False, **headers):
    """Return the answer as a message, and the id of the call, whose end is recorded."""
    body = {"model": "scripted", "messages": list(messages), "stream": stream}
    headers = {"X-Agent": agent, **({"X-Interaction-Id": run} if run else {}), **headers}
    answer = server.post(PATH, body, key=key, headers=headers)
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["choices"][0]["message"], answer.json()["id"]
    chunks = [json.loads(data) for data in data_of(answer.text) if data != "[DONE]"]
    text = "".join(c["delta"].get("content") or "" for ch in chunks for c in ch["choices"])
    return {"role": "assistant", "content": text}, chunks[0]["id"]


def graph(server, run, **query):
    answer = server.request("GET", f"/v1/interactions/{run}/graph", server.app_key, params=query)
    assert answer.status_code == 200, answer.text
    return answer


def edges_of(server, run):
    """Return edges between agents, in order."""
    found = graph(server, run).json()
    agents = {node["id"]: node["agent"] for node in found["nodes"]}
    return sorted((agents[parent], agents[child]) for parent, child in found["edges"]), found


@pytest.mark.parametrize("stream", [False, True])
def test_the_graph_of_a_supervisor_and_its_agents_is_recognised(server, stream):
    run = f"supervised-{stream}"
    task = user("ok plan the work")
    plan, _ = call(server, run, "boss", task, stream=stream)
    first, _ = call(server, run, "writer", user("ok write"), stream=stream)
    call(server, run, "writer 2", user("ok write"), first, user("ok more"), stream=stream)
    call(server, run, "boss 2", task, plan, user("ok sum up"), stream=stream)
    edges, found = edges_of(server, run)
    assert edges == [("boss", "writer"), ("writer", "writer 2"), ("writer 2", "boss 2")]
    assert [node["stage"] for node in found["nodes"]] == [1, 2, 3, 4]
    assert found["critical_path"]["calls"] == [node["id"] for node in found["nodes"]]
    assert all(
        node["state"] == "completed" and node["output_tokens"] == 3 for node in found["nodes"]
    )


def test_overlapping_calls_are_parallel_and_shown_while_they_run(server, worker):
    call(server, "wide", "root", user("ok begin"))
    with ThreadPoolExecutor(3) as threads:
        calls = [
            threads.submit(call, server, "wide", f"branch {n}", user(f"hold {n}")) for n in range(3)
        ]
        found = eventually(
            lambda: (
                (g := edges_of(server, "wide"))[1]["parallelism"] == 3
                and all(n["state"] == "running" for n in g[1]["nodes"][1:])
                and g
            )
        )
        assert found[0] == [("root", f"branch {n}") for n in range(3)]
        worker.release()
        for each in calls:
            each.result()
    call(server, "wide", "join", user("ok join"))
    edges, found = edges_of(server, "wide")
    assert [each for each in edges if each[1] == "join"] == [
        (f"branch {n}", "join") for n in range(3)
    ]
    assert found["stages"] == 3


def test_named_parents_override_recognition(server):
    _, first = call(server, "given", "a", user("ok a"))
    call(server, "given", "b", user("ok b"))
    call(server, "given", "c", user("ok c"), **{"X-Parent-Ids": first})
    call(server, "given", "d", user("ok d"), **{"X-Parent-Ids": ""})
    edges, found = edges_of(server, "given")
    assert edges == [("a", "b"), ("a", "c")]
    assert [node["stage"] for node in found["nodes"]] == [1, 2, 2, 1]


def test_an_idle_run_completes_and_a_late_call_reopens_it(restless):
    server = restless

    def state():
        answer = server.request("GET", "/v1/interactions/late", server.app_key)
        return answer.json()

    call(server, "late", "a", user("ok a"))
    ended = eventually(lambda: (found := state())["state"] == "complete" and found, state)
    assert (ended["calls"], ended["wasted_tokens"]) == (1, 0)
    call(server, "late", "b", user("ok b"))
    again = state()
    assert (again["calls"], again["opened_at"]) == (2, ended["opened_at"])
    assert edges_of(server, "late")[0] == [("a", "b")]
    assert eventually(lambda: (found := state())["state"] == "complete" and found)["calls"] == 2


def test_an_idle_run_without_its_sink_expires_as_waste(restless):
    opened = restless.post("/v1/interactions", {"id": "forgotten", "sink": "report"})
    assert opened.status_code == 201, opened.text
    call(restless, "forgotten", "a", user("ok a"))

    def expired():
        run = restless.request("GET", "/v1/interactions/forgotten", restless.app_key).json()
        return run if run["state"] == "expired" else None

    run = eventually(expired)
    assert (run["tokens"], run["wasted_tokens"], run["waste_cause"]) == (15, 15, "expired")


def test_the_graph_is_drawn(server):
    call(server, "drawn", "<b>", user("ok"))
    answer = graph(server, "drawn", format="svg")
    assert answer.headers["content-type"].startswith("image/svg+xml")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    texts = [e.text for e in ElementTree.fromstring(answer.text).iter() if e.tag.endswith("text")]
    assert "<b>" in texts


def test_a_run_of_another_app_does_not_exist(server):
    call(server, "own", "a", user("ok"))
    other = server.new_key("other")
    answer = server.request("GET", "/v1/interactions/own/graph", other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "interaction_not_found")
    call(server, "own", "b", user("ok"), key=other)
    assert len(graph(server, "own").json()["nodes"]) == 1
    assert server.request("GET", "/v1/interactions/own/graph?format=png", other).status_code == 400


def test_a_call_without_a_user_gets_the_user_of_its_run(server):
    opened = server.post("/v1/interactions", {"id": "whose", "user": "ann"})
    assert opened.status_code == 201, opened.text
    call(server, "whose", "a", user("ok"))
    assert server.row(interaction_id="whose")["user_id"] == "ann"
    body = {"model": "scripted", "messages": [user("ok")], "user": "eve"}
    other = server.post(PATH, body, headers={"X-Interaction-Id": "whose"})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "interaction_not_found")


def test_a_client_library_may_retry_a_named_call(server):
    """The first attempt counts as another call; without the library's header it is an error."""
    _, named = call(server, "again", "a", user("ok"), **{"X-Call-Id": "mine"})
    assert named == "chatcmpl-mine"
    body = {"model": "scripted", "messages": [user("ok")]}
    headers = {"X-Interaction-Id": "again", "X-Call-Id": "mine"}
    rejected = server.post(PATH, body, headers=headers)
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (409, "duplicate_call")
    for number in ("1", "2"):
        again = server.post(PATH, body, headers={**headers, "x-stainless-retry-count": number})
        assert (again.status_code, again.headers["x-call-id"]) == (200, "mine")
    call(server, "again", "b", user("ok"), **{"X-Parent-Ids": named})
    found = graph(server, "again").json()
    assert [node["id"] for node in found["nodes"]][:3] == ["mine", "mine~2", "mine~3"]
    assert found["edges"][-1][0] == "mine"


def test_run_ids_may_contain_slashes(server):
    call(server, "team/a b", "a", user("ok"))
    path = "/v1/interactions/team%2Fa%20b"
    assert server.request("GET", path, server.app_key).json()["id"] == "team/a b"
    assert len(server.request("GET", f"{path}/graph", server.app_key).json()["nodes"]) == 1
    assert server.request("POST", f"{path}/close", server.app_key).json()["closed"] is True


def test_an_answer_has_a_request_id(server):
    body = {"model": "scripted", "messages": [user("ok")]}
    answer = server.post(PATH, body, headers={"X-Interaction-Id": "named"})
    assert answer.headers["x-request-id"] == server.row(interaction_id="named")["call_id"]


def test_a_run_completes_with_its_named_sink(server):
    opened = server.post("/v1/interactions", {"id": "sunk", "sink": "last/one"})
    assert opened.status_code == 201, opened.text
    call(server, "sunk", "a", user("ok"))
    call(server, "sunk", "b", user("ok"), **{"X-Call-Id": "last/one"})
    found = server.request("GET", "/v1/interactions/sunk", server.app_key).json()
    assert (found["state"], found["calls"]) == ("complete", 2)
    wrong = server.post("/v1/interactions", {"sink": "a\nb"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "sink")


def rejection(server, *, key=None, metadata=None, **headers):
    body = {"model": "scripted", "messages": [user("ok")], "metadata": metadata}
    answer = server.post(PATH, body, key=key, headers=headers)
    return answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]


def test_a_parent_of_another_run_or_app_is_rejected(server):
    _, theirs = call(server, "has-parents", "a", user("ok"), **{"X-Call-Id": "named"})
    stranger = server.new_key("stranger")
    for key in (None, stranger):
        for parent in ("named", theirs, "has-parents/named"):
            for run in ("has-none", "has-parents" if key else "has-none"):
                answered = {"X-Interaction-Id": run, "X-Parent-Ids": parent}
                expected = (422, "unknown_parent", "X-Parent-Ids")
                assert rejection(server, key=key, **answered) == expected
        path = "/v1/interactions/has-none"
        assert server.request("GET", path, key or server.app_key).status_code == 404
    path = "/v1/interactions/has-parents"
    assert server.request("GET", path, stranger).status_code == 404
    assert server.request("GET", path, server.app_key).json()["calls"] == 1


def test_invalid_run_ids_are_rejected(server):
    expected = (400, "invalid_value", "x-interaction-id")
    assert rejection(server, **{"X-Interaction-Id": "i" * 10_000}) == expected
    for text in ("i" * 10_000, "a\nb", "a\u0000b", "\u202e", " "):
        answered = rejection(server, metadata={"interaction_id": text})
        assert answered == (400, "invalid_value", "metadata.interaction_id")
        answer = server.post("/v1/interactions", {"id": text})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id"), text
    listed = server.request("GET", "/v1/interactions?limit=1000", server.app_key).json()["items"]
    assert not {each["id"] for each in listed} & {"i" * 10_000, "a\nb", " ", ""}


def test_a_closed_run_accepts_no_calls(server):
    call(server, "closed", "a", user("ok"))
    assert server.post("/v1/interactions/closed/close", None).status_code == 200
    answered = rejection(server, **{"X-Interaction-Id": "closed"})
    assert answered == (409, "interaction_closed", "X-Interaction-Id")
    body = {"model": "scripted", "messages": [user("ok")]}
    answer = server.post(PATH, body, headers={"X-Interaction-Id": "closed"})
    assert "begin a new run with another X-Interaction-Id" in answer.json()["error"]["message"]
    again = server.post("/v1/interactions", {"id": "closed"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "interaction_closed")
    assert server.row(interaction_id="closed")["outcome"] == "completed"  # the only row
