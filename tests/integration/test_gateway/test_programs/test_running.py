"""Declared programs are run, followed, cancelled, continued after a restart, and kept for a time."""

import json
import random
import threading

from processes import eventually
from scripted_worker import ScriptedWorker

from .asking import ended, follow, node, nodes_of, read, rows, started, state_of, submit, texts
from .interrupted import INTERRUPTED, assert_continues, interrupted


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


def test_the_events_of_an_ended_run_are_its_final_state(server):
    run = started(server, node("only", "say done"))
    ended(server, run)
    found = []
    follow(server, run, found)
    assert [kind for kind, _ in found] == ["interaction"]
    assert found[0][1]["program"]["result"] == {"only": "done"}


def test_a_run_of_single_calls_has_events(server, worker):
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


def test_a_server_that_stops_ends_event_streams_with_an_event(start_server, worker):
    server = start_server("--worker-urls", worker.url)
    try:
        server.post("/v1/interactions", {"id": "open"})
        found = []
        follower = threading.Thread(target=follow, args=(server, "open", found))
        follower.start()
        eventually(lambda: found)
        assert server.stop() == 0
        follower.join(60)
        assert not follower.is_alive()
        assert [kind for kind, _ in found] == ["interaction", "error"]
        assert found[1][1]["error"]["code"] == "draining"
    finally:
        server.close()


def test_cancelling_stops_running_calls(server, worker):
    held = texts(worker).count("hold")
    run = started(
        server, node("a", "hold"), node("b", "hold"), node("c", "say {{a.output}}{{b.output}}")
    )
    eventually(lambda: texts(worker).count("hold") == held + 2)
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


def test_a_broken_call_is_retried(server):
    run = started(server, node("a", "once more of this"), node("b", "say got {{a.output}}"))
    found = ended(server, run)
    assert found["program"]["result"] == {"b": "got more of this"}
    assert nodes_of(found)["a"]["attempts"] == 2
    graph = read(server, run, "/graph").json()
    assert [(each["id"], each["state"]) for each in graph["nodes"]] == [
        *(("a", "failed"), ("a~2", "completed"), ("b", "completed"))
    ]
    assert graph["edges"] == [["a~2", "b"]]


def test_a_failed_node_skips_its_dependents(server):
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


def test_a_restart_continues_at_the_same_step(start_server):
    """The stop has the same effect as a crash: ``test_crash.py``."""
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url, "--drain-timeout-s", "0")
    try:
        before = interrupted(server, worker)
        server.stop()
        assert rows(server, "programs", id=INTERRUPTED)[0]["state"] == "running"
        server.start()
        assert_continues(server, worker, before)
    finally:
        server.close()
        worker.close()


def test_an_invalid_list_fails_its_node(server):
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


def test_programs_of_a_deleted_app_end(server, worker):
    key = server.new_key("short-lived")
    run = submit(server, node("a", "hold the deleted"), key=key).json()["id"]
    eventually(lambda: "hold the deleted" in texts(worker))
    (row,) = rows(server, "programs", id=run)
    before = worker.disconnects
    path = f"/v1/apps/{row['app_id']}"
    assert server.request("DELETE", path, server.tenant_key).status_code == 200
    eventually(lambda: worker.disconnects == before + 1)
    eventually(lambda: rows(server, "programs", id=run)[0]["state"] == "cancelled")
    assert rows(server, "programs", id=run)[0]["reason"] == "its app was deleted"
    eventually(lambda: server.rows(interaction_id=run))
    assert server.rows(interaction_id=run)[0]["outcome"] == "cancelled"


def test_many_concurrent_programs_leave_nothing_behind(start_server):
    worker = ScriptedWorker(kv_blocks=100_000)
    server = start_server("--worker-urls", worker.url)
    try:
        words = ["say", "say", "say", "once", "refuse", "break"]
        chance = random.Random(7)
        runs = []
        for number in range(30):
            nodes = [node("n0", "say a")]
            for index in range(1, 10):
                parent = f"n{chance.randrange(index)}"
                text = f"{chance.choice(words)} {number}.{index} {{{{{parent}.output}}}}"
                nodes.append(node(f"n{index}", text))
            runs.append(started(server, *nodes, user=f"user {number % 7}"))
            if chance.random() < 0.3:
                path = f"/v1/interactions/{chance.choice(runs)}"
                assert server.request("DELETE", path, server.app_key).status_code in (200, 409)
        found = [ended(server, run) for run in runs]
        # A run that is cancelled after a failed call is aborted.
        expected = {
            "complete": {"complete"},
            "failed": {"aborted"},
            "cancelled": {"cancelled", "aborted"},
        }
        assert {each["program"]["state"] for each in found} == set(expected)
        for each in found:
            assert each["state"] in expected[each["program"]["state"]]
            assert {n["state"] for n in each["program"]["nodes"]}.isdisjoint({"waiting", "running"})
        eventually(lambda: server.cluster()["live_interactions"] == 0)
        cluster = server.cluster()
        assert (cluster["queued_calls"], cluster["running_calls"]) == (0, 0)
        assert not rows(server, "programs", state="running")
        eventually(
            lambda: sum(row["calls"] for row in rows(server, "interactions")) == len(server.rows())
        )
        by_run = {row["id"]: row for row in rows(server, "interactions")}
        for each in found:
            calls = server.rows(interaction_id=each["id"])
            used = sum(
                row["input_tokens"] + row["system_tokens"] + row["output_tokens"] for row in calls
            )
            assert by_run[each["id"]]["tokens"] == used
    finally:
        server.close()
        worker.close()


def test_outputs_are_kept_for_their_retention(start_server):
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url, "--content-retention-days", "0.000001")
    try:
        run = started(server, node("a", "say it"))
        assert ended(server, run)["program"]["result"] == {"a": "it"}
        server.stop()
        server.start()
        eventually(lambda: state_of(server, run)["program"] is None)
        assert state_of(server, run)["state"] == "complete"
        assert not rows(server, "program_steps", program_id=run)
        assert [each["id"] for each in read(server, run, "/graph").json()["nodes"]] == ["a"]
    finally:
        server.close()
        worker.close()
