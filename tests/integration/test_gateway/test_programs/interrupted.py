"""Shared steps of the tests that interrupt a program and continue it after a restart."""

from processes import eventually

from .asking import ended, node, read, started, texts

INTERRUPTED = "over-a-restart"


def interrupted(server, worker):
    """Start the program; return its graph once the first call has ended and the second is held."""
    run = started(
        server,
        node("first", "say before"),
        node("second", "hold {{first.output}}"),
        node("third", "say {{first.output}}, {{second.output}}"),
        id=INTERRUPTED,
    )
    eventually(lambda: "hold before" in texts(worker))
    return read(server, run, "/graph").json()


def assert_continues(server, worker, before):
    """Check that the next server repeats the held call, and makes the remaining ones."""
    run = INTERRUPTED
    eventually(lambda: texts(worker).count("hold before") == 2)
    # Its run accepts no calls of others, and does not end by idling.
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]}
    headers = {"X-Interaction-Id": run}
    assert server.post("/v1/chat/completions", body, headers=headers).status_code == 409
    worker.release()
    found = ended(server, run)
    assert found["state"] == "complete"
    assert found["program"]["result"] == {"third": "before, one two three"}
    assert texts(worker).count("say before") == 1
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
    assert before["nodes"][0] == after["nodes"][0]
    assert [each["stage"] for each in after["nodes"]] == [1, 2, 2, 3]
