"""One call without I/O: its steps, what is retried, and exactly one report of its end."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.interactions.call import NO_USAGE, Call
from fairserve.platform.base.errors import WorkerFailedError
from fairserve.platform.control.messages import Cancel, Grant, Submit
from fairserve.platform.fleet.models import ServedModel
from fairserve.platform.serving.completions.openai_endpoint import OpenAIWriter
from fairserve.platform.serving.completions.requests import CHAT, read_fields
from fairserve.platform.serving.completions.running_call import TRANSITIONS, RunningCall
from fairserve.platform.serving.decision.check import CheckedCall

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": {"prompt_tokens": 4}}
BROKEN = WorkerUnavailableError("no connection: host 10.0.0.7:8000", cause="unknown")
BUSY = WorkerUnavailableError("busy", cause="busy")


def text(n):
    usage = {"prompt_tokens": 4, "completion_tokens": n}
    return {"choices": [{"index": 0, "delta": {"content": f"t{n}"}}], "usage": usage}


def chunks(*data):
    return [WorkerChunk(copy.deepcopy(each)) for each in data]


def running(*, stream=True, conversation=None, max_tokens=20, samples=1):
    ids = np.zeros(4, np.uint32)
    call = Call("call", "t", "app", "u", "app/run", "m", 4, 0, max_tokens, token_ids=ids)
    call.samples = samples
    model = ServedModel(("m",), "m", 100, reader=None)
    checked = CheckedCall(Submit(call, "row"), "call", model, "m", conversation=conversation)
    messages = [{"role": "user", "content": "ok"}]
    request = read_fields(CHAT, {"model": "m", "messages": messages, "stream": stream})
    return RunningCall(request, checked, OpenAIWriter(request, checked), 0.0)


def grant(worker="w1"):
    return Grant("call", worker, "tenant/user", 2.0, 0.0, 60.0)


def sent(**more):
    call = running(**more)
    request = call.granted(grant())
    assert (request.call_id, request.weight) == ("row", 2.0)
    return call


def test_an_answer_is_held_until_its_first_output():
    call = sent()
    assert call.received(chunks(ROLE), 1.0) == b""
    assert (call.state, call.queue_s, call.ttft_s) == ("started", 1.0, None)
    written = call.received(chunks(text(1), text(2)), 2.0)
    assert [b"assistant" in each for each in written.split(b"\n\n")] == [True, False, False, False]
    assert (call.state, call.ttft_s) == ("answering", 2.0)
    rest, release = call.completed()
    assert (rest, release.outcome, release.usage.output_tokens) == (b"", "completed", 2)
    assert release.ttft_s == 2.0
    call.recorded()
    assert call.state == "ended"


def test_an_answer_without_output_is_written_at_its_end():
    call = sent()
    assert call.received(chunks(ROLE), 1.0) == b""
    rest, _ = call.completed()
    assert b"assistant" in rest


def ended(sample, delta=None):
    return {"choices": [{"index": sample, "delta": delta or {}, "finish_reason": "stop"}]}


def test_the_end_of_the_last_sample_is_held_until_the_row_is_safe():
    """With it are all events that follow, in their order."""
    call = sent(samples=2)
    call.holds_end = True
    written = [call.received(chunks(data), 1.0) for data in (ROLE, text(1), ended(0), text(2))]
    assert [each.count(b"data: ") for each in written] == [0, 2, 1, 1]
    last = ended(1, {"content": "last"})
    assert call.received(chunks(last, text(3)), 2.0) == b""
    assert call.completed()[0] == b""
    end = call.recorded()
    assert end.count(b"data: ") == 2
    assert end.index(b"last") < end.index(b"t3")


def test_an_answer_of_one_chunk_is_held_until_the_row_is_safe():
    call = sent()
    call.holds_end = True
    assert b"only" not in call.received(chunks(ROLE, ended(0, {"content": "only"})), 1.0)
    assert (call.state, call.ttft_s) == ("answering", 1.0)
    call.completed()
    assert b"only" in call.recorded()


@pytest.mark.parametrize("writes", [True, False])
def test_log_probabilities_are_kept_for_a_whole_answer_only(writes):
    """A stream that may be continued is kept for its messages."""
    call = running(conversation=SimpleNamespace(answered=tuple))
    if not writes:  # the line of a batch
        call.writer = None
    call.granted(grant())
    probable = text(1)
    probable["choices"][0]["logprobs"] = {"content": [{"token": "t1", "logprob": -0.5}]}
    assert (b"logprob" in call.received(chunks(ROLE, probable), 1.0)) == writes
    (choice,) = call.merger.answer("", "", {})["choices"]
    assert choice["message"]["content"] == "t1"
    assert (choice["logprobs"] is None) == writes


def test_starts_and_first_outputs_are_reported_at_once_and_others_in_groups():
    call = sent(max_tokens=200)
    due = []
    for data in (ROLE, text(1), *map(text, range(2, 70))):
        call.received(chunks(data), 1.0)
        due.append(call.report_due)
        if call.report_due:
            report = call.report()
            assert report.started
    assert due == [True, True, *[False] * 63, True, *[False] * 4]


def test_a_failed_attempt_asks_for_the_next_worker():
    call = sent()
    call.received(chunks(ROLE), 1.0)
    release = call.failed(BROKEN)
    assert (release.retry_on_another_worker, release.usage) == (True, NO_USAGE)
    assert release.error == "w1: no connection: host [address]"
    assert call.state == "waiting"
    call.granted(grant("w2"))
    assert (call.queue_s, call.meter.started) == (None, False)
    written = call.received(chunks(text(1)), 3.0)
    assert b"assistant" not in written, "the first attempt's beginning is forgotten"
    assert call.completed()[1].usage.output_tokens == 1


@pytest.mark.parametrize(
    ("error", "attempts"), [(BUSY, 3), (BROKEN, 2)], ids=["busy", "the call's fault"]
)
def test_attempts_are_bounded(error, attempts):
    call = sent()
    again = []
    while call.state != "ended":
        again.append(call.failed(error).retry_on_another_worker)
        if again[-1]:
            call.granted(grant())
    assert again == [*[True] * (attempts - 1), False]
    assert call.error.status == 503


def failure(cause, message=""):
    return WorkerUnavailableError("raw", cause=cause, client_message=message)


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ([failure("failed", "CUDA error"), failure("failed", "CUDA error")], 502),
        ([failure("unknown"), failure("failed", "CUDA error")], 502),
        ([failure("worker"), failure("failed", "CUDA error"), failure("busy")], 503),
        ([failure("unknown"), failure("unknown")], 503),
        ([failure("busy"), failure("busy"), failure("busy")], 503),
    ],
    ids=["errors", "one answered", "once only", "no answer", "busy"],
)
def test_a_call_that_may_have_caused_the_failure_has_two_attempts(errors, status):
    call = running()
    for error in errors:
        assert call.state == "waiting"
        call.granted(grant())
        call.failed(error)
    assert (call.state, call.error.status) == ("ended", status)
    assert ("CUDA error" in call.error.message) == (status == 502)


def test_the_loss_of_a_worker_is_not_counted_against_the_call():
    call = sent()
    for error, lost in ((failure("silent"), True), (BROKEN, False)):
        assert call.failed(error, lost=lost).retry_on_another_worker
        call.granted(grant())


def test_a_driver_that_cannot_send_again_ends_the_call():
    call = sent()
    release = call.failed(failure("busy"), last=True)
    assert (release.retry_on_another_worker, release.outcome) == (False, "failed")


def test_after_the_first_output_a_failure_is_final():
    call = sent()
    call.received(chunks(ROLE, text(1)), 1.0)
    release = call.failed(WorkerStreamError("gone"))
    assert (release.outcome, release.usage.output_tokens) == ("failed", 1)
    assert call.error.code == "worker_failed"


@pytest.mark.parametrize(
    ("cause", "lost", "retried"),
    [
        ("silent", False, False),
        ("busy", False, True),
        ("worker", False, True),
        ("busy", True, False),
    ],
)
def test_a_whole_answer_is_not_made_twice(cause, lost, retried):
    call = sent(stream=False)
    call.started(1.0)
    call.started(9.0)
    assert (call.state, call.queue_s, call.report_due) == ("started", 1.0, True)
    assert call.failed(failure(cause), lost=lost).retry_on_another_worker == retried


def test_a_rejection_by_the_worker_is_passed_on_and_costs_nothing():
    call = sent(stream=False)
    call.started(1.0)
    release = call.failed(WorkerRejectedError(400, {"message": "no tools", "param": "tools"}))
    assert (release.outcome, release.usage) == ("failed", NO_USAGE)
    assert (call.error.status, call.error.param) == (400, "tools")


def test_a_stopped_call_is_not_retried():
    call = sent()
    call.stop_order = Cancel("call", "cancelled", "its run was cancelled")
    release = call.failed(BROKEN)
    assert (release.outcome, release.error) == ("cancelled", "its run was cancelled")
    assert (call.error.code, call.error.message) == ("call_stopped", "its run was cancelled")


def test_a_lease_that_has_ended_stops_the_call():
    call = sent()
    call.lease_ended()
    assert call.failed(BROKEN).error == "its lease has ended"
    other = sent()
    other.stop_order = Cancel("call", "cancelled", "first")
    other.lease_ended()
    assert other.failed(BROKEN).error == "first"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("x"), "internal error: KeyError"),
        (WorkerFailedError("mixed parts"), "mixed parts"),
    ],
)
def test_an_answer_that_cannot_be_written_has_failed(error, text):
    call = sent()
    call.received(chunks(ROLE), 1.0)
    release = call.broke(error)
    assert (release.outcome, release.error) == ("failed", text)


def test_an_unread_answer_counts_as_expected():
    call = running()
    call.granted(replace(grant(), expected_output_tokens=7))
    call.received([], 1.0)
    release = call.unread()
    assert (release.outcome, release.usage.output_tokens) == ("completed", 7)
    assert release.usage.prompt_tokens == 4


def test_the_end_of_a_call_has_its_continuation_keys():
    answered = []
    conversation = SimpleNamespace(answered=lambda messages: answered.extend(messages) or (1, 2))
    call = sent(conversation=conversation)
    call.received(chunks(ROLE, text(1)), 1.0)
    assert call.completed()[1].continuation_keys == (1, 2)
    assert answered[0]["content"] == "t1"


STEPS = st.lists(
    st.sampled_from(
        ["grant", "start", "role", "text", "complete", "busy", "break", "reject", "stop", "leave"]
    ),
    max_size=14,
)


@given(STEPS, st.booleans())
def test_every_grant_is_reported_once_whatever_happens(steps, stream):
    """Only what can happen in a state does; the end is reported by exactly one release."""
    call, grants, releases = running(stream=stream), 0, []
    for step in steps:
        state = call.state
        at_worker = state in ("sent", "started", "answering")
        if step == "grant" and state == "waiting":
            call.granted(grant())
            grants += 1
        elif step == "start" and state == "sent":
            call.started(1.0)
        elif step in ("role", "text") and at_worker:
            call.received(chunks(ROLE if step == "role" else text(1)), 1.0)
        elif step == "complete" and state in ("started", "answering"):
            releases.append(call.completed()[1])
            call.recorded()
        elif step in ("busy", "break", "reject") and at_worker:
            error = {"busy": BUSY, "break": BROKEN, "reject": WorkerRejectedError(400)}[step]
            releases.append(call.failed(error))
            assert (call.state == "waiting") == releases[-1].retry_on_another_worker
            assert (call.error is None) == releases[-1].retry_on_another_worker
        elif step == "stop":
            call.stop_order = Cancel("call", "cancelled", "stopped")
        elif step == "leave" and at_worker:
            releases.append(call.left())
        assert call.state in TRANSITIONS
    assert len(releases) == grants - (call.state in ("sent", "started", "answering"))
    final = [each for each in releases if not each.retry_on_another_worker]
    assert len(final) == (call.state == "ended")


def test_no_step_leads_out_of_the_end():
    assert TRANSITIONS["ended"] == {}
    assert {state for steps in TRANSITIONS.values() for state in steps.values()} == set(
        TRANSITIONS
    ), "every state can be reached"
