"""Access logs of the real Envoy: progress and ends of calls, at the server and in the file."""

import asyncio

import aiohttp
import orjson
import pytest
from envoy_plane import WHOLE, answering, envoy_plane, facts_of, streaming
from until import until

PATH = "/v1/chat/completions"


@pytest.fixture
async def plane():
    async with envoy_plane() as plane:
        yield plane


def event(number, **more):
    choice = {"index": 0, "delta": {"content": "a"}, **more}
    usage = {"prompt_tokens": 7, "completion_tokens": number}
    return b"data: " + orjson.dumps({"choices": [choice], "usage": usage}) + b"\n\n"


async def test_progress_of_a_running_stream_arrives(plane):
    """Each token follows the entry of the one before it."""
    steps = asyncio.Queue()

    async def script(received, writer):
        await streaming([], end=False)(received, writer)
        while (part := await steps.get()) is not None:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")

    await plane.worker(script, stream=True)

    async def ask():
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + PATH, data=b"{}") as response,
        ):
            return await response.read()

    asked = asyncio.create_task(ask())
    for number in range(1, 4):
        steps.put_nowait(event(number))
        await until(
            lambda number=number: any(
                facts_of(entry).get("output_tokens") == number
                for entry in plane.decisions.progress()
            )
        )
    assert not plane.decisions.ends()
    steps.put_nowait(event(4, finish_reason="stop") + b"data: [DONE]\n\n")
    steps.put_nowait(None)
    await asked
    await until(plane.decisions.ends)
    entry = plane.decisions.ends()[0]
    assert entry.request.request_headers["x-fairserve-call"] == "r1"
    facts = facts_of(entry)
    first_ms = facts.pop("first_output_ms")
    began_ms = entry.common_properties.start_time.ToMilliseconds()
    assert began_ms <= first_ms <= began_ms + entry.common_properties.duration.ToMilliseconds()
    assert facts == {"started": True, "complete": True, "prompt_tokens": 7, "output_tokens": 4}
    for each in plane.decisions.progress():
        assert each.request.request_headers["x-fairserve-call"] == "r1"
        assert facts_of(each)["started"]


@pytest.mark.parametrize("answers", [False, True])
async def test_a_call_that_has_not_begun_makes_no_progress(plane, answers):
    """Its worker sends nothing, or no event; another call's entries show that time has passed."""

    async def script(received, writer):
        runs = received.headers["x-fairserve-call"] == "runs"
        if runs or answers:
            await streaming([event(1)] if runs else [], end=False)(received, writer)
        await asyncio.Event().wait()

    worker = await plane.worker(script, stream=True)
    plane.decisions.set_headers["x-fairserve-call"] = "waits"
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(session.post(plane.url + PATH, data=b"{}"))
        await until(lambda: worker.received)
        plane.decisions.set_headers["x-fairserve-call"] = "runs"
        async with session.post(plane.url + PATH, data=b"{}") as response:
            await response.content.readuntil(b"\n\n")
            await until(lambda: len(plane.decisions.progress()) >= 5)
            response.close()
        names = {
            each.request.request_headers["x-fairserve-call"] for each in plane.decisions.progress()
        }
        assert names == {"runs"}
        if answers:
            (await waiting).close()
        else:
            waiting.cancel()


async def test_the_file_has_the_end_of_each_call(plane):
    whole = {
        "choices": [{"index": 0, "finish_reason": "stop", "text": "a"}],
        "usage": {"completion_tokens": 3},
    }
    await plane.worker(answering(body=orjson.dumps(whole)))
    async with aiohttp.ClientSession() as session:
        for name in ("r1", 'r2"', "r3"):
            plane.decisions.set_headers["x-fairserve-call"] = name
            async with session.post(plane.url + PATH, data=b"{}") as response:
                await response.read()
        async with session.get(plane.url + "/v1/models") as response:
            await response.read()
    await until(lambda: plane.addresses.ends_file.exists() and len(plane.ends()) == 3)
    assert [line["call"] for line in plane.ends()] == ["r1", 'r2"', "r3"]
    line = plane.ends()[0]
    assert (line["status"], line["flags"], line["attempts"]) == (200, "-", 1)
    assert line["answer"]["complete"] is True
    assert line["answer"]["output_tokens"] == 3
    assert float(line["began"]) > 1.7e9


async def test_the_file_begins_anew_when_it_is_large(plane):
    await plane.worker(answering(body=WHOLE))

    async def ask():
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + PATH, data=b"{}") as response,
        ):
            await response.read()

    path = plane.addresses.ends_file
    await ask()
    await until(lambda: path.exists() and len(plane.ends()) == 1)
    await plane.process.bound_log()
    assert len(plane.ends()) == 1
    plane.process._max_log_bytes = 10
    await plane.process.bound_log()
    before = path.with_name("access.jsonl.1")
    assert len(before.read_bytes().splitlines()) == 1
    await ask()
    await until(lambda: path.exists() and len(plane.ends()) == 1)
    assert len(before.read_bytes().splitlines()) == 1


async def test_a_server_that_was_away_gets_the_entries_again(plane):
    await plane.worker(answering(body=WHOLE))

    async def ask():
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + PATH, data=b"{}") as response,
        ):
            return response.status

    assert await ask() == 200
    await until(plane.decisions.ends)
    await plane.decisions.stop()
    assert await ask() == 503
    await plane.decisions.start(plane.addresses.decisions.path)
    async with asyncio.timeout(60):
        while await ask() != 200:
            pass
    count = len(plane.decisions.ends())
    assert await ask() == 200
    await until(lambda: len(plane.decisions.ends()) > count)
