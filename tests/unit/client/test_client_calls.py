"""Test the requests of ``fairserve_client``: parents, headers, hooks, and what it never sends."""

import logging
import subprocess
import sys

import httpx
import openai
import pytest
from recording_platform import KEY, MESSAGES, call

from fairserve.interactions.tracking import identity
from fairserve_client import event_hooks, headers, interaction

# --- parents of calls -----------------------------------------------------------------------------


def test_agents_follow_the_calls_of_others(platform, client):
    with interaction(client) as run:
        with run.agent("planner") as planner:
            plan = call(run.client)
            call(run.client)
        workers = [run.agent(f"worker {number}", after=[planner]) for number in range(2)]
        for worker in workers:
            with worker:
                call(run.client)
                call(run.client)
        with run.agent("reviewer", after=[*workers, plan.id]):
            call(run.client)
        with run.agent("root", after=[]):
            call(run.client)
    parents = [headers.get("x-parent-ids") for headers, _ in platform.calls]
    assert parents == [None, None, "c1,c2", "c3", "c1,c2", "c5", "c3,c4,c5,c6,chatcmpl-c1", ""]


def test_an_agent_without_calls_passes_on_its_parents(platform, client):
    with interaction(client) as run:
        skipped = run.agent("skipped", after=["a"])
        with run.agent("next", after=[skipped]):
            call(run.client)
        with run.agent("next", after=[run.agent("unknown")]):
            call(run.client)
    assert [headers.get("x-parent-ids") for headers, _ in platform.calls] == ["a", None]


async def test_ids_of_streams_and_raw_answers_are_read(platform, client, async_client):
    with interaction(client) as run, run.agent("planner") as planner:
        with call(run.client, stream=True) as stream:
            assert [chunk.choices[0].delta.content for chunk in stream] == ["x"]
        run.client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).parse()
        with run.client.chat.completions.with_streaming_response.create(
            model="m", messages=MESSAGES, extra_headers=run.headers(call_id="mine")
        ) as response:
            response.parse()
        call(run.client, extra_headers={"X-Call-Id": "mine-2"})
    assert planner.calls == ["c1", "c2", "mine", "mine-2"], "the answers' ids are others"
    async with interaction(async_client) as run:
        with run.agent("planner") as planner:
            async with await call(run.client, stream=True) as stream:
                assert [chunk.choices[0].delta.content async for chunk in stream] == ["x"]
    assert planner.calls == ["c5"]


def test_the_latest_parents_are_named_above_the_bound(platform, client):
    with interaction(client) as run:
        with run.agent("planner") as planner:
            planner.calls = [str(number) for number in range(100)]
        with run.agent("writer", after=[planner]):
            call(run.client)
    named = platform.calls[0][0]["x-parent-ids"].split(",")
    assert named == [str(number) for number in range(36, 100)]


# --- headers and hooks ------------------------------------------------------------------------------


def test_headers_are_provided_for_frameworks(client):
    with interaction(client, id="r") as run:
        assert run.headers() == {"x-interaction-id": "r"}
        assert run.headers(agent="a b", parents=["c", "d"], call_id="e", final=True) == {
            "x-interaction-id": "r",
            "x-agent": "a b",
            "x-parent-ids": "c,d",
            "x-call-id": "e",
            "x-interaction-final": "true",
        }
        assert run.headers(parents=[])["x-parent-ids"] == ""
        with pytest.raises(ValueError, match="no comma"):
            run.headers(call_id="a,b")
        with pytest.raises(ValueError, match="no header can carry"):
            run.headers(agent="Köchin")
        with pytest.raises(ValueError, match="not printable"):
            run.agent("a\r\nX-Other: b")
        with pytest.raises(ValueError, match="is empty"):
            run.agent(" ")
    with pytest.raises(ValueError, match="allowed: 128"):
        interaction(client, id="x" * 129)


def test_an_http_client_with_the_hooks_names_the_context(platform, client):
    with (
        platform.client(event_hooks=event_hooks()) as other,
        interaction(client, user="ann") as run,
    ):
        call(other)
        with run.agent("planner") as planner:
            call(other, stream=True).close()
            call(other, extra_headers={"X-Agent": "critic"})
            call(other, extra_headers={"X-Interaction-Id": "another"})
            other.models.list()
            platform.fail = {"/v1/chat/completions": (429, "overloaded")}
            with pytest.raises(openai.RateLimitError):
                call(other)
            platform.fail = {}
        with run.agent("writer", after=[planner]):
            call(other)
    call(other.with_options(http_client=httpx.Client(transport=httpx.MockTransport(platform))))
    headers = [{**headers, "x-own": ""} for headers, _ in platform.calls]
    own, run_1 = {"x-own": ""}, {"x-own": "", "x-interaction-id": "run-1"}
    assert headers == [
        run_1,
        run_1 | {"x-agent": "planner"},
        run_1 | {"x-agent": "critic"},
        own | {"x-interaction-id": "another"},
        run_1 | {"x-agent": "writer", "x-parent-ids": "c2,c3"},
        own,
    ]


async def test_hooks_work_with_async_http_clients(platform, client):
    async with platform.async_client(event_hooks=event_hooks()) as other:
        with interaction(client) as run, run.agent("planner") as planner:
            await call(other)
    assert platform.calls[0][0] == {"x-interaction-id": "run-1", "x-agent": "planner"}
    assert planner.calls == ["c1"]


def test_hooks_work_with_clients_of_the_openai_package(platform, client):
    with (
        openai.DefaultHttpxClient(event_hooks=event_hooks()) as http,
        interaction(client, id="r") as run,
        run.agent("planner"),
    ):
        request = http.build_request("GET", "http://platform/")
        for hook in http.event_hooks["request"]:
            hook(request)
    assert request.headers["x-agent"] == "planner"


# --- exclusions -----------------------------------------------------------------------------------


def test_the_key_is_never_shown(platform, client, caplog):
    caplog.set_level(logging.DEBUG, logger="fairserve")
    platform.fail = {"/v1/interactions/run-1": (500, "internal_error")}
    texts = []

    def program():
        with interaction(client, user="ann") as run:
            texts.extend([repr(run), repr(vars(run)), str(run.headers()), repr(run.agent("a"))])
            raise KeyError

    with pytest.raises(KeyError) as raised:
        program()
    assert KEY not in "".join([*texts, *raised.value.__notes__, caplog.text])


@pytest.mark.parametrize("name", ["fairserve_client", "fairserve.client"])
def test_it_imports_only_the_standard_library(name):
    program = (
        f"import sys; before = set(sys.modules); import {name};"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) <= {"fairserve", "fairserve_client"}


def test_client_and_server_mean_the_same_headers():
    for name in (
        "MAX_ID_CHARS",
        "MAX_PARENTS",
        "RUN_HEADER",
        "FINAL_HEADER",
        "CALL_HEADER",
        "PARENTS_HEADER",
        "AGENT_HEADER",
    ):
        assert getattr(headers, name) == getattr(identity, name), name
