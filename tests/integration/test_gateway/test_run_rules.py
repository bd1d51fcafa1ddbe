"""Calls of one agent run are recognised without code in the client, by rules that each app switches."""

import pytest
from processes import eventually

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(start_server, worker):
    return start_server("--worker-urls", worker.url)


@pytest.fixture(scope="module")
def proxied(start_server, worker):
    """Return a server for which this machine is a proxy."""
    server = start_server("--worker-urls", worker.url, "--trusted-proxies", "127.0.0.1")
    patch(server, ["interaction_header", "whole_trace"])
    return server


def user(text):
    return {"role": "user", "content": text}


def call(server, *messages, key=None, headers=None, **body):
    """Return the run, the rule that found it, and the conversation with the answer."""
    body = {"model": "scripted", "messages": list(messages), **body}
    answer = server.post(PATH, body, key=key, headers=headers or {})
    assert answer.status_code == 200, answer.text
    found = answer.headers
    message = answer.json()["choices"][0]["message"]
    return (
        found["x-interaction-id"],
        found.get("x-fairserve-run-rule"),
        [*messages, {"role": "assistant", "content": message["content"]}],
    )


def interaction(server, run):
    return server.request("GET", f"/v1/interactions/{run}", server.app_key).json()


def trace(number):
    return {"traceparent": f"00-{number:032x}-00f067aa0ba902b7-01"}


def switch(server, rules):
    """Return the answer to a change of the app's rules."""
    apps = server.request("GET", "/v1/apps", server.tenant_key).json()["items"]
    path = f"/v1/apps/{apps[0]['id']}"
    return server.request("PATCH", path, server.tenant_key, json={"run_rules": rules})


def patch(server, rules):
    answer = switch(server, rules)
    assert answer.status_code == 200, answer.text
    return answer.json()["run_rules"]


def test_an_agent_without_a_run_id_has_one_run(server):
    run, rule, said = call(server, user("ok plan a trip"))
    assert (run[:4], rule) == ("run_", None)
    for text in ("ok and hotels", "ok and trains"):
        again, rule, said = call(server, *said, user(text))
        assert (again, rule) == (run, "continued_conversation")
    found = server.request("GET", f"/v1/interactions/{run}/graph", server.app_key).json()
    assert [node["stage"] for node in found["nodes"]] == [1, 2, 3]
    eventually(lambda: interaction(server, run)["state"] == "complete")
    shown = interaction(server, run)
    assert (shown["calls"], shown["tokens"]) == (3, 3 * 15)
    other, _, _ = call(server, *said, user("ok more"), user="ann")
    assert other != run


def test_equal_conversations_are_separate_runs(server):
    runs = [call(server, user("ok the same")) for _ in range(2)]
    said = runs[0][2]
    assert len({run for run, _, _ in [*runs, call(server, *said, user("ok next"))]}) == 3


def test_ids_that_frameworks_send_name_the_run(server):
    for field in ("session_id", "run_id", "thread_id"):
        ids = {"metadata": {field: f"the {field}"}}
        run, rule, _ = call(server, user("ok one"), **ids)
        assert call(server, user("ok two"), **ids)[:2] == (run, "metadata")
        assert call(server, user("ok two"), user="ann", **ids)[0] != run
        assert rule == "metadata"
    malformed = {"metadata": {"session_id": 7, "run_id": "x" * 513}}
    assert call(server, user("ok malformed"), **malformed)[1] is None
    run, rule, _ = call(server, user("ok"), metadata={"interaction_id": "own", "session_id": "s"})
    assert (run, rule) == ("own", "interaction_metadata")


def test_a_trace_joins_only_what_it_continues(server):
    run, _, said = call(server, user("ok traced"), headers=trace(1))
    other, _, _ = call(server, user("ok traced"), headers=trace(2))
    assert call(server, *said, user("ok go on"), headers=trace(1))[:2] == (run, "traceparent")
    assert call(server, *said, user("ok go on"), headers=trace(2))[:2] == (other, "traceparent")
    assert call(server, user("ok something else"), headers=trace(1))[0] not in (run, other)
    assert call(server, user("ok"), headers={"traceparent": "00-0-0-0"})[1] is None


def test_a_trace_from_a_proxy_names_no_run(server, proxied):
    """The same rules join the calls of a trace that a client begins itself."""
    runs = {call(proxied, user("ok"), headers=trace(3))[0] for _ in range(2)}
    assert len(runs) == 2
    patch(server, ["whole_trace"])
    runs = {call(server, user(text), headers=trace(3))[:2] for text in ("ok a", "ok b")}
    patch(server, None)
    assert len(runs) == 1
    assert {rule for _, rule in runs} == {"whole_trace"}


def test_an_app_switches_its_rules(server):
    cached = {"prompt_cache_key": "constant"}
    assert call(server, user("ok 1"), **cached)[0] != call(server, user("ok 2"), **cached)[0]
    assert patch(server, ["prompt_cache_key", "aliases"]) == ["aliases", "prompt_cache_key"]
    run, rule, said = call(server, user("ok 3"), **cached)
    assert rule == "prompt_cache_key"
    assert call(server, user("ok 4"), **cached)[0] == run
    assert call(server, *said, user("ok 5"))[0] != run
    assert call(server, user("ok"), headers={"X-Interaction-Id": "off"})[0] != "off"
    assert call(server, user("ok"), headers={"session-id": "on"})[:2] == ("on", "aliases")
    assert patch(server, []) == []
    assert call(server, user("ok"), headers={"session-id": "on"})[1] is None
    assert patch(server, None) is None
    answer = switch(server, ["magic"])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "run_rules.0")
    assert "interaction_header" in error["message"]


def test_runs_without_an_id_do_not_use_up_the_open_ones(server):
    """A run that only its conversation names ends with its call, and its id can be used."""
    run, _, said = call(server, user("ok by its id"))
    eventually(lambda: interaction(server, run)["state"] == "complete")
    assert call(server, user("ok new"), headers={"X-Interaction-Id": run})[0] == run
    assert call(server, *said, user("ok"))[0] == run


def test_text_completions_never_continue_one_another(server):
    prompt = "say once upon a time"
    runs = set()
    for _ in range(2):
        answer = server.post("/v1/completions", {"model": "scripted", "prompt": prompt})
        assert answer.status_code == 200, answer.text
        assert "x-fairserve-run-rule" not in answer.headers
        runs.add(answer.headers["x-interaction-id"])
        prompt += answer.json()["choices"][0]["text"]
    assert len(runs) == 2


def test_system_messages_do_not_count_in_a_conversation(server):
    planner, critic = (
        {"role": "system", "content": f"You are the {who}"} for who in ("one", "two")
    )
    first, _, said = call(server, planner, user("say a plan"))
    second, rule, _ = call(server, critic, *said[1:], user("say more"))
    assert (second, rule) == (first, "continued_conversation")
