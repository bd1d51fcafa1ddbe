"""Test ``fairserve_client`` with the real openai package: runs, agents and their context."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from recording_platform import MESSAGES, call
from until import settle

from fairserve.interactions.tracking import identity
from fairserve_client import agent, current_run, headers, interaction

# --- runs -----------------------------------------------------------------------------------------


def test_a_run_is_opened_named_and_closed(platform, client):
    with interaction(client, user="ann") as run:
        assert run.id == "run-1"
        assert current_run() is run
        call(run.client)
        run.client.completions.create(model="m", prompt="x")
    assert platform.calls == [
        ({"x-interaction-id": "run-1", "x-own": "kept"}, body)
        for body in (
            {"model": "m", "messages": MESSAGES, "user": "ann"},
            {"model": "m", "prompt": "x", "user": "ann"},
        )
    ]
    assert platform.others == [
        ("POST", "/v1/interactions", {"user": "ann"}),
        ("POST", "/v1/interactions/run-1/close", None),
    ]
    with pytest.raises(LookupError, match="no run here"):
        current_run()


def test_the_client_of_the_caller_is_unchanged(platform, client):
    before = set(vars(client)) | {"chat"}
    with interaction(client, user="ann") as run, run.agent("planner"):
        assert type(run.client) is openai.OpenAI
        call(client)
    assert platform.calls == [({"x-own": "kept"}, {"model": "m", "messages": MESSAGES})]
    assert set(vars(client)) == before


def test_copies_of_the_runs_client_belong_to_the_run(platform, client):
    with interaction(client, user="ann") as run, run.agent("planner"):
        call(run.client.with_options(timeout=3).copy(default_headers={"X-Own": "mine"}))
    ((headers, body),) = platform.calls
    assert headers == {"x-interaction-id": "run-1", "x-agent": "planner", "x-own": "mine"}
    assert body["user"] == "ann"


def test_other_requests_have_no_user_and_no_agent(platform, client):
    with interaction(client, user="ann") as run, run.agent("planner") as planner:
        run.client.models.list()
        run.client.embeddings.with_raw_response.create(model="m", input="x")
    assert platform.others[1:3] == [
        ("GET", "/v1/models", None),
        ("POST", "/v1/embeddings", {"input": "x", "model": "m", "encoding_format": "base64"}),
    ]
    assert planner.calls == []


def test_fields_set_by_a_call_are_kept(platform, client):
    with interaction(client, user="ann") as run, run.agent("planner"):
        call(run.client, user="bob", extra_headers=run.headers(agent="critic", call_id="a"))
        call(run.client, extra_body={"user": "eve"}, extra_headers={"X-Parent-Ids": "a"})
        call(run.client, extra_headers={"X-Interaction-Id": "another"})
    (first, bob), (second, eve), (third, nobody) = platform.calls
    assert (first["x-agent"], first["x-call-id"], bob["user"]) == ("critic", "a", "bob")
    assert (second["x-agent"], second["x-parent-ids"], eve["user"]) == ("planner", "a", "eve")
    assert third == {"x-interaction-id": "another", "x-own": "kept"}
    assert "user" not in nobody


def test_a_run_without_a_user_belongs_to_the_app(platform, client):
    with interaction(client) as run:
        call(run.client)
    assert platform.others[0] == ("POST", "/v1/interactions", {})
    assert "user" not in platform.calls[0][1]


def test_an_interaction_can_be_reentered(platform, client):
    again = interaction(client, user="ann")
    for _ in range(2):
        with again:
            pass
    opened = ("POST", "/v1/interactions", {"user": "ann"})
    assert platform.others == [opened, ("POST", "/v1/interactions/run-1/close", None)] * 2


def test_a_block_that_raises_cancels_its_run(platform, client):
    with pytest.raises(KeyError), interaction(client):
        raise KeyError
    assert platform.others[1:] == [("DELETE", "/v1/interactions/run-1", None)]
    with pytest.raises(LookupError):
        current_run()


def test_joining_a_run_neither_opens_nor_ends_it(platform, client):
    with interaction(client, id="report 42", user="ann") as run:
        call(run.client)
    with pytest.raises(KeyError), interaction(client, id="report 42"):
        raise KeyError
    assert platform.others == []
    assert platform.calls[0][0]["x-interaction-id"] == "report 42"
    with interaction(client, id="report 42", close=True):
        pass
    assert platform.others == [("POST", "/v1/interactions/report 42/close", None)]


@pytest.mark.parametrize("answer", [(404, "interaction_not_found"), (409, "interaction_closed")])
def test_closing_an_ended_run_is_no_error(platform, client, answer):
    platform.fail = {"/v1/interactions/run-1/close": answer}
    with interaction(client):
        pass


@pytest.mark.parametrize("answer", [(404, "not_found"), (500, "internal_error")])
def test_a_run_that_cannot_be_closed_is_an_error(platform, client, answer):
    platform.fail = {"/v1/interactions/run-1/close": answer}
    with pytest.raises(openai.APIStatusError), interaction(client):
        pass


def test_the_error_of_the_block_is_raised_even_if_cancelling_fails(platform, client):
    platform.fail = {"/v1/interactions/run-1": (500, "internal_error")}
    with pytest.raises(KeyError) as raised, interaction(client):
        raise KeyError
    assert raised.value.__notes__ == ["the run could not be cancelled: InternalServerError"]


def test_a_server_without_runs_is_an_error_of_the_client(platform, client):
    platform.fail = {"/v1/interactions": (404, "not_found")}
    with pytest.raises(openai.NotFoundError), interaction(client):
        pytest.fail("the block ran")


async def test_an_async_client_opens_and_closes_runs(platform, async_client):
    async with interaction(async_client, user="ann") as run:
        assert type(run.client) is openai.AsyncOpenAI
        with run.agent("planner") as planner:
            await call(run.client)
    with pytest.raises(KeyError):
        async with interaction(async_client):
            raise KeyError
    headers, body = platform.calls[0]
    assert headers == {"x-interaction-id": "run-1", "x-agent": "planner"}
    assert body["user"] == "ann"
    assert planner.calls == ["c1"]
    assert [(method, path) for method, path, _ in platform.others] == [
        ("POST", "/v1/interactions"),
        ("POST", "/v1/interactions/run-1/close"),
        ("POST", "/v1/interactions"),
        ("DELETE", "/v1/interactions/run-1"),
    ]


async def test_the_wrong_kind_of_with_names_the_right_one(client, async_client):
    with pytest.raises(TypeError, match="async with"), interaction(async_client):
        pass
    with pytest.raises(TypeError, match="use `with"):
        async with interaction(client):
            pass


# --- agents -----------------------------------------------------------------------------------------


def test_agents_by_context_and_by_decorator(platform, client):
    with interaction(client) as run:

        @run.agent("writer")
        def write(text):
            """Writes."""
            return call(run.client, stop=text)

        with run.agent("planner") as planner:
            call(run.client)
            write("x")
            call(run.client)
        call(run.client)
    assert write.__name__ == "write"
    agents = [headers.get("x-agent") for headers, _ in platform.calls]
    assert agents == ["planner", "writer", "planner", None]
    assert planner.calls == ["c1", "c3"]


@agent("editor")
def edit():
    return call(current_run().client)


@agent("reader")
async def read(pause):
    await pause.wait()
    await call(current_run().client)
    return current_run().id


def test_a_module_level_agent_joins_the_current_run(platform, client):
    with interaction(client, id="a"):
        edit()
        with interaction(client, id="b"):
            edit()
        with agent("critic", after=["x"]) as critic:
            edit()
        assert critic.run is current_run()
    seen = [(headers["x-interaction-id"], headers["x-agent"]) for headers, _ in platform.calls]
    assert seen == [("a", "editor"), ("b", "editor"), ("a", "editor")]
    with pytest.raises(LookupError, match="no run here"):
        edit()


def test_a_run_client_keeps_its_run_inside_another(platform, client):
    with interaction(client, id="a", user="ann") as outer, outer.agent("planner") as planner:
        with interaction(client, id="b", user="bob") as inner, inner.agent("writer") as writer:
            call(outer.client)
            call(inner.client)
        call(inner.client)
    assert [(headers, body["user"]) for headers, body in platform.calls] == [
        ({"x-interaction-id": "a", "x-own": "kept"}, "ann"),
        ({"x-interaction-id": "b", "x-own": "kept", "x-agent": "writer"}, "bob"),
        ({"x-interaction-id": "b", "x-own": "kept"}, "bob"),
    ]
    assert (planner.calls, writer.calls) == ([], ["c2"])


async def test_tasks_do_not_disturb_each_other(platform, async_client):
    pause = asyncio.Event()

    async def one(number):
        async with interaction(async_client, id=f"run-{number}", user=f"user-{number}"):
            return await read(pause)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(5)]
        await settle()
        pause.set()
    assert [task.result() for task in tasks] == [f"run-{number}" for number in range(5)]
    seen = {(headers["x-interaction-id"], body["user"]) for headers, body in platform.calls}
    assert seen == {(f"run-{number}", f"user-{number}") for number in range(5)}
    assert {headers["x-agent"] for headers, _ in platform.calls} == {"reader"}


def test_threads_see_the_context_in_a_copy(platform, client):
    with interaction(client, user="ann") as run, run.agent("worker"), ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, call, run.client).result()
        pool.submit(call, run.client).result()
    with_copy, without = platform.calls
    assert with_copy[0]["x-agent"] == "worker"
    assert "x-agent" not in without[0]
    assert without[0]["x-interaction-id"] == "run-1"
    assert without[1]["user"] == "ann"


def test_a_generator_is_rejected(client):
    def words():
        yield "x"

    async def more():
        yield "x"

    for function in (words, more):
        with pytest.raises(TypeError, match=f"{function.__name__} is a generator"):
            agent("planner")(function)


@pytest.mark.parametrize("name", [name for name in vars(headers) if name.isupper()])
def test_headers_and_bounds_are_those_of_the_server(name):
    assert getattr(headers, name) == getattr(identity, name)
