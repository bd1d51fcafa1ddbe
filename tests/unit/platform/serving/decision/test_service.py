"""The decision service turns requests into grants or errors, over a scripted control."""

from dataclasses import replace

import numpy as np
import pytest

from fairserve.platform.base.errors import (
    AuthenticationError,
    ConflictError,
    FairServeError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.platform.control.messages import Attached, Cancel, Grant, RejectCall, RunView
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompts.reader import Prompt
from fairserve.platform.serving.decision.check import CheckOptions
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import Decision

APP = Principal("app", "tenant", "app", key_id="key", actor="sk-fs-x")


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
        self.on_message = None
        self.joined = None

    def run_of(self, owner, clues, answer):
        return self.joined

    def _next(self, message_id):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Decision):
            return RejectCall(message_id, answer, mid_run=False)
        if answer is None:
            return None
        return Grant(message_id, answer, "tenant/user", 2.0, 0.0, 60.0)

    async def submit(self, message, on_message):
        self.submitted.append(message)
        self.on_message = on_message
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


async def test_a_request_is_placed_on_a_worker_with_headers():
    control = Control("w1")
    decisions = service(control)
    checked = await decisions.check(request(headers={"x-interaction-id": "r", "x-call-id": "c"}))
    grant = await decisions.place(checked)
    assert isinstance(grant, Grant)
    assert (grant.worker_id, grant.weight) == ("w1", 2.0)
    call = control.submitted[0].call
    assert (call.pool, call.user, call.max_output_tokens) == ("worker-m", "app", 96)
    headers = decisions.headers(checked, grant, 0.25)
    assert headers["x-interaction-id"] == "r"
    assert headers["x-fairserve-worker"] == "w1"
    assert headers["x-fairserve-queue-ms"] == "250"
    assert "x-fairserve-worker" not in decisions.headers(checked)


async def test_headers_name_the_run_that_control_has_found_before_the_grant():
    control = Control("w1")
    decisions = service(control)
    checked = await decisions.check(request())
    orders = []
    await decisions.place(checked, orders.append)
    assert "x-fairserve-stage" not in decisions.headers(checked)
    control.on_message(Attached("app/found", 2, "conversation"))
    headers = decisions.headers(checked)
    assert (headers["x-interaction-id"], headers["x-fairserve-stage"]) == ("found", "2")
    assert headers["x-fairserve-run-rule"] == "conversation"
    control.on_message(stop := Cancel("c"))
    assert orders == [stop]


class Keys:
    """Knows one key of each scope."""

    async def authenticate(self, key):
        if key not in ("app", "tenant"):
            raise AuthenticationError("unknown")
        return replace(APP, scope=key)


@pytest.mark.parametrize(
    ("header", "status"), [("", 401), ("Basic app", 401), ("Bearer x", 401), ("Bearer tenant", 403)]
)
async def test_invalid_keys_are_rejected_by_their_headers(header, status):
    with pytest.raises(FairServeError) as caught:
        await service(Control(), Keys()).authenticate({"authorization": header})
    assert caught.value.status == status


async def test_a_key_belongs_to_an_app():
    assert await service(Control(), Keys()).authenticate({"authorization": "bearer  app "}) == APP


async def test_an_error_of_control_reaches_the_caller():
    decisions = service(Control(UnavailableError("the queue is full")))
    checked = await decisions.check(request())
    with pytest.raises(UnavailableError, match="the queue is full"):
        await decisions.place(checked)


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
    assert isinstance(await decisions.place(checked), Grant)
    call = control.submitted[1].call
    assert call.interaction_id == f"app/{checked.run_id}" != "app/r"
    assert call.call_id == f"app/{checked.run_id}/{checked.call_id}"
    assert (call.parents, call.user) == ((), "ann")


async def test_a_named_run_that_has_ended_is_an_error():
    decisions = service(Control(ConflictError("ended", code="interaction_closed"), "w1"))
    checked = await decisions.check(request(headers={"x-interaction-id": "r"}, **CONTINUED))
    with pytest.raises(ConflictError) as caught:
        await decisions.place(checked)
    assert caught.value.code == "interaction_closed"
