"""Calls of a worker are reported to its circuit."""

import asyncio

import pytest
from until import settle

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.circuit import Circuit, CircuitOptions
from fairserve.engine.wire.watched_client import WatchedClient


class Client:
    """A client that plays a script; ``rejects_with`` is an error that is raised before."""

    def __init__(self, *script, rejects_with=None):
        self.script, self.rejects_with = list(script), rejects_with
        self.closed = 0

    async def open(self, request):
        if self.rejects_with is not None:
            raise self.rejects_with
        return self

    async def __anext__(self):
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return WorkerChunk(step)

    def close(self):
        self.closed += 1


def watched(client, opened=None, calls=1):
    circuit = Circuit(CircuitOptions(calls=calls))
    on_open = (lambda: None) if opened is None else lambda: opened.append(True)
    return WatchedClient(client, circuit, lambda: 3.0, on_open), circuit


def request(samples=1):
    return WorkerRequest("/v1/chat/completions", {"n": samples}, "call", "a")


async def test_a_call_that_fails_to_start_opens_the_circuit():
    opened = []
    client, circuit = watched(Client(rejects_with=WorkerUnavailableError("503")), opened)
    with pytest.raises(WorkerUnavailableError):
        await client.open(request())
    assert (circuit.state, opened) == ("open", [True])
    assert circuit.until_s == 3.0 + circuit.options.first_pause_s


@pytest.mark.parametrize("unreachable", [True, False])
async def test_one_unreachable_call_opens_the_circuit(unreachable):
    refused = WorkerUnavailableError("no connection", unreachable=unreachable)
    client, circuit = watched(Client(rejects_with=refused), calls=5)
    with pytest.raises(WorkerUnavailableError):
        await client.open(request())
    assert (circuit.state == "open") == unreachable


@pytest.mark.parametrize(
    "error", [WorkerRejectedError(400), WorkerUnavailableError("429", pause_s=1.0)]
)
async def test_a_rejection_or_a_pause_does_not_open_the_circuit(error):
    client, circuit = watched(Client(rejects_with=error))
    with pytest.raises(type(error)):
        await client.open(request())
    assert (circuit.state, client.sequences) == ("closed", 0)


async def test_an_answer_without_a_chunk_opens_the_circuit():
    client, circuit = watched(Client(WorkerUnavailableError("ended")))
    stream = await client.open(request(3))
    assert client.sequences == 3
    with pytest.raises(WorkerUnavailableError):
        await anext(stream)
    assert (circuit.state, client.sequences) == ("open", 0)


async def test_a_locally_closed_answer_does_not_open_the_circuit():
    client, circuit = watched(Client(WorkerUnavailableError("the connection was closed")))
    stream = await client.open(request())
    stream.close()
    with pytest.raises(WorkerUnavailableError):
        await anext(stream)
    assert (circuit.state, client.sequences) == ("closed", 0)


async def test_an_answer_that_breaks_later_does_not_open_the_circuit():
    client, circuit = watched(Client({}, WorkerStreamError("broken")))
    stream = await client.open(request(2))
    await anext(stream)
    assert client.sequences == 2
    with pytest.raises(WorkerStreamError):
        await anext(stream)
    stream.close()
    assert (circuit.state, client.sequences) == ("closed", 0)


async def test_a_call_cancelled_while_sending_does_not_open_the_circuit():
    class Stalling:
        async def open(self, request):
            await asyncio.Event().wait()

    client, circuit = watched(Stalling())
    opening = asyncio.ensure_future(client.open(request()))
    await settle()
    assert client.sequences == 1
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert (circuit.state, client.sequences) == ("closed", 0)
