"""The decision service turns requests into placements or rejections, over a scripted control."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from fairserve.engine.wire.base import WorkerRejectedError
from fairserve.interactions.call import NO_USAGE, TokenUsage
from fairserve.interactions.tracking.identity import CallIdentity
from fairserve.platform.base.errors import (
    AuthenticationError,
    ConflictError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.platform.control.messages import Cancel, Grant, RejectCall, RunView
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompt import Prompt, PromptTooLongError
from fairserve.platform.serving.decision.check import CheckOptions
from fairserve.platform.serving.decision.placement import AttemptFailure, Placement, Used
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.request import CallRequest, DeclaredWork
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import Decision

APP = Principal("app", "tenant", "app", key_id="key", actor="sk-fs-x")
BROKEN = AttemptFailure("no connection: host 10.0.0.7:8000", "unknown")
BUSY = AttemptFailure("busy", "busy")
PART = Used(TokenUsage(4, 0, 0, 2), ttft_s=0.5)


class Reader:
    exact = True


class Control:
    """Answers submissions and retries from a script, and keeps every message."""

    def __init__(self, *answers, run_user=None):
        self.answers = list(answers)
        self.run_user = run_user
        self.submitted = []
        self.releases = []
        self.progress_lease = True
        self.on_cancel = None
        self.joined = None

    def run_of(self, owner, clues, answer):
        return self.joined

    def _next(self, message_id):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Decision):
            return RejectCall(message_id, "run", 1, answer, mid_run=False)
        if answer is None:
            return None
        return Grant(message_id, "run", 1, answer, "tenant/user", 2.0, 0.0, 60.0)

    async def submit(self, message, on_cancel):
        self.submitted.append(message)
        self.on_cancel = on_cancel
        return self._next(message.call.call_id)

    async def release(self, message):
        self.releases.append(message)
        return self._next(message.call_id) if message.retry_on_another_worker else None

    def progress(self, message):
        return self.progress_lease

    def limits_in_use(self, tenant, app, user):
        return LimitsInUse()

    async def interaction(self, run_id):
        if self.run_user is None:
            return None
        return RunView(run_id, "tenant", "app", self.run_user, "open", 0.0, 0.0, 0, 0, 0)


async def four_tokens(reader, tenant, max_tokens):
    return Prompt(np.zeros(4, np.uint32), 0)


def request(**changes):
    fields = {"endpoint": "/v1/chat/completions", "model": "m", "prompt_field": "messages"}
    return CallRequest(APP, count_tokens=four_tokens, **(fields | changes))


def service(control, authenticator=None, **options):
    models = Models(lambda worker_name: 1)
    models.serve(ServedModel(("m",), "worker-m", 100, reader=Reader()))
    return DecisionService(authenticator, control, models, CheckOptions(**options))


async def placed(control, **changes):
    decisions = service(control)
    return await decisions.place(await decisions.check(request(**changes)))


async def test_a_request_is_placed_on_a_worker_with_headers():
    control = Control("w1")
    decisions = service(control)
    checked = await decisions.check(request(headers={"x-interaction-id": "r", "x-call-id": "c"}))
    placement = await decisions.place(checked)
    assert isinstance(placement, Placement)
    assert (placement.grant.worker_id, placement.grant.weight) == ("w1", 2.0)
    call = control.submitted[0].call
    assert (call.pool, call.user, call.max_output_tokens) == ("worker-m", "app", 96)
    headers = decisions.headers(checked, placement.grant, 0.25)
    assert headers["x-interaction-id"] == "r"
    assert headers["x-fairserve-worker"] == "w1"
    assert headers["x-fairserve-queue-ms"] == "250"
    assert "x-fairserve-worker" not in decisions.headers(checked)


class Keys:
    """Knows one key of each scope, and counts the lookups."""

    def __init__(self):
        self.asked = 0

    async def authenticate(self, key):
        self.asked += 1
        if key not in ("app", "tenant"):
            raise AuthenticationError("unknown")
        return replace(APP, scope=key)


@pytest.mark.parametrize(
    ("header", "status"), [("", 401), ("Basic app", 401), ("Bearer x", 401), ("Bearer tenant", 403)]
)
async def test_invalid_keys_are_rejected_by_their_headers(header, status):
    answer = await service(Control(), Keys()).authenticate({"authorization": header})
    assert isinstance(answer, Rejection)
    assert answer.status == status


async def test_a_carrier_needs_only_the_service():
    keys, control = Keys(), Control("w1")
    decisions = service(control, keys)
    principal = await decisions.authenticate({"authorization": "bearer  app "})
    assert principal == APP
    assert await decisions.authenticate({}, principal) == APP
    assert keys.asked == 1
    placement = await decisions.place(await decisions.check(request()))
    await placement.end("completed", PART)
    assert [release.outcome for release in control.releases] == ["completed"]


async def test_a_request_that_its_worker_rejects_is_not_retried():
    control = Control("w1", "w2")
    placement = await placed(control)
    answer = WorkerRejectedError(400, {"message": "no tools here", "param": "tools"})
    failure = AttemptFailure(str(answer), "unknown", rejected=answer)
    rejection = await placement.failed(failure, Used())
    assert (rejection.status, rejection.body()["error"]["param"]) == (400, "tools")
    assert [release.retry_on_another_worker for release in control.releases] == [False]


async def too_long(reader, tenant, max_tokens):
    raise PromptTooLongError(max_tokens + 1)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"max_output_tokens": 97, "max_output_field": "max_completion_tokens"}, 400, None),
        ({"count_tokens": too_long}, 400, "messages"),
        ({"headers": {"x-interaction-id": ""}}, 400, "x-interaction-id"),
    ],
    ids=["model", "output", "prompt", "identity"],
)
async def test_an_invalid_request_is_rejected_without_control(changes, status, param):
    control = Control()
    fields = {"endpoint": "/v1/x", "model": "m", "prompt_field": "messages"} | changes
    count = fields.pop("count_tokens", four_tokens)
    rejection = await service(control).check(CallRequest(APP, count_tokens=count, **fields))
    assert isinstance(rejection, Rejection)
    assert rejection.status == status
    if param is not None:
        assert rejection.body()["error"]["param"].lower() == param
    assert not control.submitted


async def test_a_call_without_a_user_belongs_to_the_user_of_its_run():
    decisions = service(Control(run_user="ann"))
    checked = await decisions.check(request(headers={"x-interaction-id": "r"}))
    assert checked.call.user == "ann"
    checked = await decisions.check(request(user="bob", headers={"x-interaction-id": "r"}))
    assert checked.call.user == "bob"


async def test_a_declared_call_has_its_own_identity_and_work():
    identity = CallIdentity("r", call_id="node", parents=("first",), agent="planner")
    declared = DeclaredWork(expected_output_tokens=7, remaining_tokens=30.0)
    checked = await service(Control()).check(request(identity=identity, declared=declared))
    call = checked.call
    assert (checked.run_id, checked.call_id, call.agent) == ("r", "node", "planner")
    assert (call.declared, call.declared_output_tokens, call.remaining_tokens) == (True, 7, 30.0)


async def test_a_retry_of_the_client_library_is_recognised_by_its_bytes():
    decisions = service(Control())
    first, second, other = [
        await decisions.check(request(headers={"x-stainless-retry-count": count}, raw=raw))
        for count, raw in (("0", b"a"), ("1", b"a"), ("0", b"b"))
    ]
    assert first.fingerprint == second.fingerprint != other.fingerprint
    assert (first.repeated, second.repeated) == (False, True)


async def test_a_rejection_by_control_has_the_time_to_wait():
    decision = Decision(False, "overloaded_user_limit", "user", 3, 60.0, 4, retry_after_s=11.2)
    rejection = await placed(Control(decision))
    assert (rejection.status, rejection.headers["retry-after"]) == (429, "12")


async def test_an_error_of_control_is_a_rejection():
    rejection = await placed(Control(UnavailableError("the queue is full")))
    assert (rejection.status, rejection.error.message) == (503, "the queue is full")


async def test_a_failed_attempt_is_placed_on_the_next_worker():
    control = Control("w1", "w2")
    placement = await placed(control)
    assert await placement.failed(BROKEN, Used()) is None
    assert placement.grant.worker_id == "w2"
    await placement.end("completed", PART)
    first, last = control.releases
    assert first.retry_on_another_worker
    assert first.error == "w1: no connection: host [address]"
    assert (last.outcome, last.usage) == ("completed", PART.usage)


@pytest.mark.parametrize(
    ("failure", "attempts"), [(BUSY, 3), (BROKEN, 2)], ids=["busy", "the call's fault"]
)
async def test_attempts_are_bounded(failure, attempts):
    control = Control("w1", "w2", "w3", "w4")
    placement = await placed(control)
    answers = [await placement.failed(failure, Used()) for _ in range(attempts)]
    assert answers[:-1] == [None] * (attempts - 1)
    assert answers[-1].status == 503
    assert [release.retry_on_another_worker for release in control.releases] == [
        *[True] * (attempts - 1),
        False,
    ]


async def test_the_loss_of_a_worker_is_not_counted_against_the_call():
    placement = await placed(Control("w1", "w2", "w3"))
    lost = AttemptFailure("closed", "silent", worker_lost=True)
    assert await placement.failed(lost, Used()) is None
    assert await placement.failed(BROKEN, Used()) is None


async def test_a_failure_after_output_is_final():
    control = Control("w1", "w2")
    rejection = await (await placed(control)).failed(BROKEN, PART)
    assert rejection.error.code == "worker_failed"
    assert [release.outcome for release in control.releases] == ["failed"]


@pytest.mark.parametrize("answer", [UnavailableError("not in time"), None])
async def test_a_retry_without_a_worker_ends_the_call(answer):
    control = Control("w1", answer)
    rejection = await (await placed(control)).failed(BROKEN, Used())
    assert rejection.status == 503
    assert len(control.releases) == 1


async def test_a_stopped_call_is_not_retried():
    control, stopped = Control("w1", "w2"), asyncio.Event()
    decisions = service(control)
    placement = await decisions.place(await decisions.check(request()), stopped.set)
    control.on_cancel(Cancel("call", "cancelled", "its run was cancelled"))
    assert stopped.is_set()
    assert placement.stopped == "its run was cancelled"
    rejection = await placement.failed(BROKEN, Used())
    assert (rejection.error.code, rejection.error.message) == ("call_stopped", placement.stopped)
    (release,) = control.releases
    assert (release.outcome, release.error) == ("cancelled", "its run was cancelled")


async def test_an_expired_lease_stops_the_call():
    control = Control("w1")
    control.progress_lease = False
    placement = await placed(control)
    assert not placement.progress(NO_USAGE, started=True, cached_tokens_reported=False)
    assert placement.stopped == "its lease has ended"


async def test_the_end_of_a_call_has_its_continuation_keys():
    control = Control("w1")
    messages = [{"role": "user", "content": "hello"}]
    placement = await placed(control, headers={"x-interaction-id": "r"}, messages=messages)
    answer = [{"role": "assistant", "content": "yes"}]
    await placement.end("completed", PART, messages=answer, requested_tools=True)
    (release,) = control.releases
    assert release.continuation_keys
    assert release.requested_tools


CONTINUED = {"continued_run": "app/r", "continued_call": "c1", "continued_user": "ann"}


@pytest.mark.parametrize(
    ("headers", "run", "parents"),
    [
        ({}, "r", ("app/r/c1",)),
        ({"x-interaction-id": "r"}, "r", ("app/r/c1",)),
        ({"x-interaction-id": "mine"}, "mine", None),
        ({"x-parent-ids": "resp_c2"}, "r", ("app/r/c2",)),
    ],
)
async def test_a_call_follows_the_response_that_it_continues(headers, run, parents):
    control = Control()
    control.joined = "app/r"
    checked = await service(control).check(request(headers=headers, **CONTINUED))
    assert (checked.run_id, checked.call.parents) == (run, parents)
    assert checked.call.user == ("app" if "x-interaction-id" in headers else "ann")


async def test_a_call_whose_run_ends_before_its_submission_begins_a_new_one():
    control = Control(UnprocessableError("ended", code="unknown_parent"), "w1")
    control.joined = "app/r"
    decisions = service(control)
    checked = await decisions.check(request(**CONTINUED))
    assert isinstance(await decisions.place(checked), Placement)
    call = control.submitted[1].call
    assert call.interaction_id == f"app/{checked.run_id}" != "app/r"
    assert call.call_id == f"app/{checked.run_id}/{checked.call_id}"
    assert (call.parents, call.user) == ((), "ann")


async def test_a_named_run_that_has_ended_is_an_error():
    decisions = service(Control(ConflictError("ended", code="interaction_closed"), "w1"))
    checked = await decisions.check(request(headers={"x-interaction-id": "r"}, **CONTINUED))
    rejection = await decisions.place(checked)
    assert isinstance(rejection, Rejection)
    assert rejection.error.code == "interaction_closed"
