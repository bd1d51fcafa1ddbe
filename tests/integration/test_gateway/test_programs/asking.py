"""Requests that the tests of programs share."""

import json

from processes import eventually


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
    """Return the run once it has ended, with its program."""

    def probe():
        found = state_of(server, run)
        return found if found["ended_at"] and found["program"]["state"] != "running" else None

    return eventually(probe, lambda: f"{run} has not ended: {read(server, run).text}")


def nodes_of(found):
    return {each["id"]: each for each in found["program"]["nodes"]}


def rows(server, table, **where):
    """Return the matching rows of a table."""
    return server.rows(table, **where)


def texts(worker):
    return [body["messages"][-1]["content"] for body in worker.bodies]


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
