"""Calls of a worker are reported to its circuit."""

from dataclasses import replace

import pytest
from received import send

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
    """A client that keeps the receiver of its call."""

    may_have_begun = True

    def __init__(self):
        self.closed = 0

    def send(self, request, receiver, transport=None):
        self.receiver = receiver
        return self

    def close(self):
        self.closed += 1


def watched(opened=None, calls=1):
    client = Client()
    circuit = Circuit(CircuitOptions(calls=calls))
    on_open = (lambda: None) if opened is None else lambda: opened.append(True)
    return WatchedClient(client, circuit, lambda: 3.0, on_open), circuit, client


def request(samples=1):
    return WorkerRequest("/v1/chat/completions", {"n": samples}, "call", "a")


def test_a_call_that_fails_to_start_opens_the_circuit():
    opened = []
    client, circuit, inner = watched(opened)
    answer = send(client, request())
    inner.receiver.failed(WorkerUnavailableError("503"))
    assert str(answer.failure) == "503"
    assert (circuit.state, opened) == ("open", [True])
    assert circuit.until_s == 3.0 + circuit.options.first_pause_s


@pytest.mark.parametrize("unreachable", [True, False])
def test_one_unreachable_call_opens_the_circuit(unreachable):
    client, circuit, inner = watched(calls=5)
    send(client, request())
    inner.receiver.failed(WorkerUnavailableError("no connection", unreachable=unreachable))
    assert (circuit.state == "open") == unreachable


@pytest.mark.parametrize(
    "error", [WorkerRejectedError(400), WorkerUnavailableError("429", pause_s=1.0)]
)
def test_a_rejection_or_a_pause_does_not_open_the_circuit(error):
    client, circuit, inner = watched()
    answer = send(client, request())
    inner.receiver.failed(error)
    assert (circuit.state, client.sequences, answer.failure) == ("closed", 0, error)


def test_an_answer_without_a_chunk_opens_the_circuit():
    client, circuit, inner = watched()
    send(client, request(3))
    assert client.sequences == 3
    inner.receiver.failed(WorkerUnavailableError("ended"))
    assert (circuit.state, client.sequences) == ("open", 0)


def test_a_closed_call_does_not_open_the_circuit():
    client, circuit, inner = watched()
    answer = send(client, request())
    assert client.sequences == 1
    answer.close()
    answer.close()
    assert (circuit.state, client.sequences) == ("closed", 0)
    assert inner.closed


def test_an_answer_that_breaks_later_does_not_open_the_circuit():
    client, circuit, inner = watched()
    answer = send(client, request(2))
    inner.receiver.received([WorkerChunk({})])
    assert client.sequences == 2
    inner.receiver.failed(WorkerStreamError("broken"))
    answer.close()
    assert (circuit.state, client.sequences) == ("closed", 0)


def test_a_start_is_reported_once():
    client, _, inner = watched()
    answer = send(client, replace(request(), stream=False))
    inner.receiver.started()
    inner.receiver.started()
    client.unstarted.read(0, 4.0)
    assert answer.starts == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_worker_may_have_begun_a_call_unless_it_was_read_to_wait(stream):
    """It is so after the call has left, too. Streams are not followed: their readings may be old."""
    client, _, _ = watched()
    first, second = (send(client, replace(request(), stream=stream)) for _ in range(2))
    client.unstarted.read(1, 9.0)
    third = send(client, replace(request(), stream=stream))
    calls = first, second, third
    for _ in range(2):
        assert [each.may_have_begun for each in calls] == [True, stream, True]
        for each in calls:
            each.close()
