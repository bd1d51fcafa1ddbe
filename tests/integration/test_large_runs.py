"""A run of 10,000 calls is shown in bounded views, made off the event loop."""

import asyncio
from dataclasses import replace

import pytest
from usage_histories import START, calls, runs

from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.serving.interactions import endpoints, service
from fairserve.platform.serving.interactions.graph_view import GraphOut

CALLS = 10_000
RUN = "large"
MAX_BYTES = 1_500_000
"""Size of the largest answer in bytes: a page of 1,000 calls with long ids and errors."""


@pytest.fixture
def large(management):
    """Return a key of the app, and the names of the calls of its run."""
    tenant = management.new_tenant("one")
    app = management.new_app(tenant)
    owner = {"tenant": tenant["id"], "app": app["id"], "interaction_id": RUN, "user": "u"}
    call = replace(calls(1, 1)[0], **owner, outcome="completed", duration_s=1.0)
    records = [
        replace(
            call,
            call_id=f"call-{n:028}",
            name=f"name-{n}",
            parents=(f"name-{n // 2}",) if n else (),
            stage=n.bit_length() + 1,
            accepted_at=START + n,
            ended_at=START + n + 1,
        )
        for n in range(CALLS)
    ]
    run = replace(runs(1, 1)[0], **owner, state="complete", calls=CALLS, opened_at=START)
    with management.state.session_factory.begin() as session:
        upsert_calls(session, records)
        upsert_interactions(session, [run])
    return tenant, app, [record.name for record in records]


def test_a_large_run_is_read_in_pages_made_off_the_event_loop(management, large, monkeypatch):
    tenant, app, names = large
    on_loop = []

    def watched(made, what):
        def make(*args, **more):
            if asyncio._get_running_loop() is not None:
                on_loop.append(what)
            return made(*args, **more)

        return make

    monkeypatch.setattr(service, "graph_of", watched(service.graph_of, "graph"))
    monkeypatch.setattr(endpoints, "draw", watched(endpoints.draw, "picture"))
    monkeypatch.setattr(GraphOut, "model_dump_json", watched(GraphOut.model_dump_json, "JSON"))

    def read(**query):
        answer = management.client.get(
            f"/v1/interactions/{RUN}/graph",
            params=query,
            headers={"Authorization": f"Bearer {app['api_key']}"},
        )
        assert len(answer.content) < MAX_BYTES
        return answer

    first, last = read().json(), read(offset=CALLS - 10).json()
    assert [node["id"] for node in first["nodes"]] == names[:1000]
    assert [node["id"] for node in last["nodes"]] == names[-10:]
    for page in (first, last):
        assert (page["total"], page["critical_path"]["length"]) == (CALLS, 15)
        assert (page["stages"], page["parallelism"]) == (15, 4096)
    assert last["edges"][-1] == [names[(CALLS - 1) // 2], names[-1]]
    picture = read(format="svg")
    assert "9000 not drawn" in picture.text
    error = read(limit=1001).json()["error"]
    assert (error["param"], "1000" in error["message"]) == ("limit", True)

    client = management.client
    client.post("/console/sign-in", data={"key": tenant["api_key"]})
    for offset, shown in ((0, "1 to 50 of 10,000"), (9_950, "9,951 to 10,000 of 10,000")):
        path = f"/console/interactions/{tenant['id']}/{app['id']}/{RUN}"
        page = client.get(path, params={"offset": offset})
        assert shown in page.text
        assert page.text.count('data-label="Call"') == 50
        assert len(page.content) < MAX_BYTES
    assert not on_loop
