"""Declared programs: run, followed, cancelled, taken up after a restart, refused for what is wrong."""

import json
import sqlite3
import threading
from contextlib import closing

import pytest
from processes import eventually

from .conftest import ScriptedWorker


@pytest.fixture(scope="module")
def worker():
    worker = ScriptedWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def server(start_server, worker):
    return start_server("--worker-urls", worker.url, "--keepalive-s", "0.2")


def node(node_id, text, **more):
    return {"id": node_id, "messages": [{"role": "user", "content": text}], **more}


def submit(server, *nodes, key=None, **more):
    body = {"model": "scripted", "nodes": list(nodes), **more}
    return server.post("/v1/interactions", body, key=key)


def started(server, *nodes, **more):
    answer = submit(server, *nodes, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def read(server, run, part="", key=None, **query):
    path = f"/v1/interactions/{run}{part}"
    return server.request("GET", path, key or server.app_key, params=query)


def state_of(server, run):
    answer = read(server, run)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(server, run):
    """The run when it has ended, with its program."""

    def probe():
        found = state_of(server, run)
        return found if found["ended_at"] and found["program"]["state"] != "running" else None

    return eventually(probe, lambda: f"{run} has not ended: {read(server, run).text}")


def nodes_of(found):
    return {each["id"]: each for each in found["program"]["nodes"]}


def rows(server, table, **where):
    database = server.data_dir / "fairserve.sqlite3"
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.row_factory = sqlite3.Row
        condition = " AND ".join(f"{name} = ?" for name in where)
        query = f"SELECT * FROM {table} WHERE {condition}"
        return [dict(row) for row in connection.execute(query, tuple(where.values()))]


def texts(worker):
    return [body["messages"][-1]["content"] for body in worker.bodies]


def test_a_program_runs(server, worker):
    run = started(
        server,
        node("planner", 'say ["the sea", "the land"]', agent="boss", sampling={"temperature": 0.5}),
        node("writer", "say {{index}}: {{item}}", map={"over": "planner"}),
        node("judge", "say good", parents=["writer"]),
        node("poet", "say never", when={"node": "judge", "op": "equals", "value": "bad"}),
        node("editor", "say {{writer.output.1}} / {{writer.output.0}} / {{poet.output}}."),
        result="editor",
        id="diamond",
        user="ann",
    )
    assert run == "diamond"
    found = ended(server, run)
    assert (found["state"], found["user"]) == ("complete", "ann")
    assert (found["calls"], found["wasted_tokens"], found["waste_cause"]) == (5, 0, "")
    program = found["program"]
    assert (program["state"], program["reason"]) == ("complete", "")
    assert program["result"] == "1: the land / 0: the sea / ."
    nodes = nodes_of(found)
    assert nodes["writer"]["output"] == ["0: the sea", "1: the land"]
    assert nodes["poet"]["state"] == "skipped"
    assert "judge" in nodes["poet"]["reason"]
    assert nodes["editor"]["stage"] == 5  # as declared; in the graph below the poet is no stage

    graph = read(server, run, "/graph").json()
    assert [each["id"] for each in graph["nodes"]] == [
        *("planner", "writer[0]", "writer[1]", "judge", "editor", "poet")
    ]
    assert sorted(map(tuple, graph["edges"])) == [
        *(("judge", "editor"), ("judge", "poet")),
        *(("planner", "writer[0]"), ("planner", "writer[1]")),
        *(("writer[0]", "editor"), ("writer[0]", "judge")),
        *(("writer[1]", "editor"), ("writer[1]", "judge")),
    ]
    by_id = {each["id"]: each for each in graph["nodes"]}
    assert by_id["planner"]["agent"] == "boss"
    assert by_id["poet"]["state"] == "skipped"
    assert [by_id[each]["stage"] for each in ("planner", "writer[0]", "judge", "editor")] == [
        *(1, 2, 3, 4)
    ]
    for parent, child in graph["edges"]:
        if child != "poet":
            ended_s = by_id[parent]["begin_s"] + by_id[parent]["duration_s"]
            assert by_id[child]["begin_s"] >= ended_s - 0.005
    first = next(
        body for body in worker.bodies if body["messages"][-1]["content"].endswith('land"]')
    )
    assert first["temperature"] == 0.5
    assert not {"user", "metadata", "nodes"} & first.keys()
    svg = read(server, run, "/graph", format="svg").text
    assert "poet" in svg


def follow(server, run, found):
    """Read a run's events into ``found`` until the stream ends."""
    headers = {"Authorization": f"Bearer {server.app_key}"}
    path = f"/v1/interactions/{run}/events"
    with server.http.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = None
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))


def test_a_program_is_followed(server, worker):
    run = started(
        server,
        node("held", "hold"),
        node("each", "say {{item}}", map={"over": "list"}),
        node("list", 'say ["x", "y"]'),
        node("last", "say {{held.output}}{{each.output}}"),
    )
    found = []
    follower = threading.Thread(target=follow, args=(server, run, found))
    follower.start()
    eventually(lambda: any(kind == "node" and data["id"] == "each" for kind, data in found))
    partial = nodes_of(eventually(lambda: _with_output(state_of(server, run), "each")))
    assert partial["held"]["state"] == "running"
    assert partial["each"]["output"] == ["x", "y"]
    assert partial["last"]["state"] == "waiting"
    graph = {each["id"]: each for each in read(server, run, "/graph").json()["nodes"]}
    assert (graph["held"]["state"], graph["last"]["state"]) == ("running", "waiting")
    worker.release()
    follower.join(60)
    assert not follower.is_alive()
    kinds = [kind for kind, _ in found]
    assert (kinds[0], kinds[-1]) == ("interaction", "interaction")
    assert set(kinds) == {"interaction", "call", "node", "task"}
    first, last = found[0][1], found[-1][1]
    assert first["state"] in ("open", "under_way")
    assert first["program"]["state"] == "running"
    assert (last["state"], last["program"]["state"]) == ("complete", "complete")
    assert last["program"]["result"] == {"last": 'one two three["x","y"]'}
    of_last = [data["state"] for kind, data in found if kind == "call" and data["id"] == "last"]
    assert of_last == ["queued", "running", "completed"]
    outputs = {data["id"]: data["output"] for kind, data in found if kind == "node"}
    assert outputs["held"] == "one two three"
    tasks = [data for kind, data in found if kind == "task" and data["state"] == "done"]
    assert sorted((data["index"], data["output"]) for data in tasks) == [(0, "x"), (1, "y")]


def _with_output(found, node_id):
    return found if nodes_of(found)[node_id]["state"] == "done" else None


def test_the_events_of_a_run_that_has_ended_are_its_state(server):
    run = started(server, node("only", "say done"))
    ended(server, run)
    found = []
    follow(server, run, found)
    assert [kind for kind, _ in found] == ["interaction"]
    assert found[0][1]["program"]["result"] == {"only": "done"}


def test_the_events_of_a_run_of_calls(server, worker):
    server.post("/v1/interactions", {"id": "by-hand"})
    found = []
    follower = threading.Thread(target=follow, args=(server, "by-hand", found))
    follower.start()
    eventually(lambda: found)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    headers = {"X-Interaction-Id": "by-hand", "X-Call-Id": "one", "X-Agent": "me"}
    assert server.post("/v1/chat/completions", body, headers=headers).status_code == 200
    server.post("/v1/interactions/by-hand/close", None)
    follower.join(60)
    assert not follower.is_alive()
    states = [(data["id"], data["agent"], data["state"]) for kind, data in found if kind == "call"]
    assert states == [("one", "me", state) for state in ("queued", "running", "completed")]
    assert [data["state"] for kind, data in found if kind == "interaction"] == ["open", "complete"]


def test_cancelling_stops_what_runs(server, worker):
    run = started(
        server, node("a", "hold"), node("b", "hold"), node("c", "say {{a.output}}{{b.output}}")
    )
    eventually(lambda: texts(worker).count("hold") >= 2)
    eventually(lambda: state_of(server, run)["live_calls"] == 2)
    before = worker.disconnects
    answer = server.request("DELETE", f"/v1/interactions/{run}", server.app_key)
    assert answer.status_code == 200
    found = ended(server, run)
    assert (found["state"], found["live_calls"]) == ("cancelled", 0)
    assert found["program"]["reason"] == "cancelled by its client"
    assert {each["state"] for each in found["program"]["nodes"]} == {"cancelled"}
    eventually(lambda: worker.disconnects == before + 2)
    eventually(lambda: len(server.rows(interaction_id=run)) == 2)
    assert {row["outcome"] for row in server.rows(interaction_id=run)} == {"cancelled"}
    again = server.request("DELETE", f"/v1/interactions/{run}", server.app_key)
    assert again.status_code == 409


def test_a_call_that_breaks_is_made_again(server):
    run = started(server, node("a", "once more of this"), node("b", "say got {{a.output}}"))
    found = ended(server, run)
    assert found["program"]["result"] == {"b": "got more of this"}
    assert nodes_of(found)["a"]["attempts"] == 2
    graph = read(server, run, "/graph").json()
    assert [(each["id"], each["state"]) for each in graph["nodes"]] == [
        *(("a", "failed"), ("a~2", "completed"), ("b", "completed"))
    ]
    assert graph["edges"] == [["a~2", "b"]]


def test_a_node_that_fails_ends_what_depends_on_it(server):
    run = started(
        server,
        node("bad", "refuse this", retries=5),
        node("after", "say {{bad.output}}"),
        node("apart", "say fine"),
        node("beyond", "say {{apart.output}}"),
    )
    found = ended(server, run)
    assert (found["state"], found["waste_cause"]) == ("aborted", "failed")
    assert found["wasted_tokens"] == found["tokens"] > 0
    nodes = nodes_of(found)
    assert [nodes[each]["state"] for each in ("bad", "after", "apart", "beyond")] == [
        *("failed", "skipped", "done", "done")
    ]
    assert nodes["bad"]["attempts"] == 1
    assert "no tools here" in nodes["bad"]["reason"]
    assert found["program"]["state"] == "failed"
    assert found["program"]["result"] == {"after": None, "beyond": "fine"}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_goes_on_where_it_was(start_server, how):
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url, "--drain-timeout-s", "0.2")
    try:
        run = started(
            server,
            node("first", f"say before the {how}"),
            node("second", "hold {{first.output}}"),
            node("third", "say {{first.output}}, {{second.output}}"),
            id=f"over-a-{how}",
        )
        held = f"hold before the {how}"
        eventually(lambda: held in texts(worker))
        graph = read(server, run, "/graph").json()
        server.kill() if how == "kill" else server.stop()
        assert rows(server, "programs", id=run)[0]["state"] == "running"
        server.start()
        eventually(lambda: texts(worker).count(held) == 2)
        # Its run takes no calls of others, and does not end by idling.
        body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
        headers = {"X-Interaction-Id": run}
        assert server.post("/v1/chat/completions", body, headers=headers).status_code == 409
        worker.release()
        found = ended(server, run)
        assert found["state"] == "complete"
        assert found["program"]["result"] == {"third": f"before the {how}, one two three"}
        assert texts(worker).count(f"say before the {how}") == 1
        assert found["opened_at"] <= found["ended_at"]
        assert found["calls"] == 4
        after = read(server, run, "/graph").json()
        assert [(each["id"], each["state"]) for each in after["nodes"]] == [
            *(("first", "completed"), ("second", "failed")),
            *(("second~2", "completed"), ("third", "completed")),
        ]
        assert sorted(map(tuple, after["edges"])) == [
            *(("first", "second"), ("first", "second~2"), ("first", "third"), ("second~2", "third"))
        ]
        assert graph["nodes"][0] == after["nodes"][0]
        assert [each["stage"] for each in after["nodes"]] == [1, 2, 2, 3]
    finally:
        server.close()
        worker.close()


def test_a_programs_run_is_its_own(server, worker):
    run = started(server, node("a", "hold mine"))
    eventually(lambda: "hold mine" in texts(worker))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    answer = server.post("/v1/chat/completions", body, headers={"X-Interaction-Id": run})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "program_run")
    answer = server.post(f"/v1/interactions/{run}/close", None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "program_run")
    answer = submit(server, node("a", "say x"), id=run)
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, "id")
    stranger = server.new_app("another app")
    for method, part in (("GET", ""), ("GET", "/graph"), ("GET", "/events"), ("DELETE", "")):
        path = f"/v1/interactions/{run}{part}"
        assert server.request(method, path, stranger).status_code == 404, path
    same = submit(server, node("a", "say theirs"), id=run, key=stranger)
    assert same.status_code == 201
    worker.release()
    assert ended(server, run)["program"]["result"] == {"a": "one two three"}


def test_a_closed_run_is_not_used_again(server):
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
def test_what_is_wrong_leaves_nothing_behind(server, what):
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
    listed = server.request("GET", "/v1/interactions?limit=1000", server.app_key).json()["data"]
    assert run not in {each["id"] for each in listed}


@pytest.mark.parametrize(
    ("nodes", "status", "code"),
    [(MANY, 400, "invalid_program"), ([node("a", "x" * 10_000_000)], 413, "body_too_large")],
)
def test_what_is_huge_is_refused(server, nodes, status, code):
    body = {"model": "scripted", "nodes": nodes, "id": "huge"}
    answer = server.post("/v1/interactions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    _nothing_is_left(server, "huge")


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b'{"nodes": [' + b"[" * 100_000, b"\xff"])
def test_what_is_no_json_object_is_refused(server, raw):
    headers = {"content-type": "application/json"}
    path = "/v1/interactions"
    answer = server.request("POST", path, server.app_key, content=raw, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_json")


def test_a_list_that_explodes_fails_its_node(server):
    numbers = json.dumps(list(range(200)))
    run = started(
        server,
        node("list", f"say {numbers}"),
        node("long", "say x", map={"over": "list", "limit": 100}),
        node("text", "say y", map={"over": "word"}),
        node("word", "say no list"),
    )
    nodes = nodes_of(ended(server, run))
    assert (nodes["long"]["state"], nodes["long"]["calls"]) == ("failed", [])
    assert "200 items; allowed: 100" in nodes["long"]["reason"]
    assert "not JSON" in nodes["text"]["reason"]


def test_an_app_that_is_deleted_takes_its_programs_along(server, worker):
    key = server.new_app("short-lived")
    run = submit(server, node("a", "hold the deleted"), key=key).json()["id"]
    eventually(lambda: "hold the deleted" in texts(worker))
    (row,) = rows(server, "programs", id=run)
    before = worker.disconnects
    path = f"/v1/apps/{row['app_id']}"
    assert server.request("DELETE", path, server.tenant_key).status_code in (200, 204)
    eventually(lambda: worker.disconnects == before + 1)
    assert not rows(server, "programs", id=run)
    assert not rows(server, "program_steps", program_id=run)
    eventually(lambda: server.rows(interaction_id=run))
    assert server.rows(interaction_id=run)[0]["outcome"] == "cancelled"
