"""From a request to a worker and headers, or to a rejection: the decisions about a call.

``check`` validates, counts and identifies without a side effect; ``place`` asks control and waits for
the grant. Protocols bring the requests, data planes carry the tokens of the placements, and neither
decides anything. Authentication comes first, because the body of a stranger is not read: its result
(:mod:`fairserve.platform.tenancy.auth`) is a part of the request.
"""

from __future__ import annotations

from collections.abc import Callable

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.messages import Grant, RefuseCall
from fairserve.platform.control.port import ControlPort
from fairserve.platform.fleet.models import Models
from fairserve.platform.serving.decision.check import CheckedCall, CheckOptions, check
from fairserve.platform.serving.decision.headers import call_headers
from fairserve.platform.serving.decision.placement import Placement, StopSignal
from fairserve.platform.serving.decision.rejection import Rejection, refusal
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.tenancy.auth import Principal


class DecisionService:
    """Decides about the calls of all protocols. Keeps no state of its own."""

    def __init__(
        self, control: ControlPort, models: Models, options: CheckOptions = CheckOptions()
    ) -> None:
        self.models = models
        self._control = control
        self._options = options

    async def check(self, request: CallRequest) -> CheckedCall | Rejection:
        """Return the call of a request, or why there is none. Nothing is recorded."""
        try:
            return await check(request, self.models, self._options, self._user_of)
        except FairServeError as error:
            return Rejection(error)

    async def place(
        self, checked: CheckedCall, on_stop: Callable[[], None] = lambda: None
    ) -> Placement | Rejection:
        """Submit a call and wait for its worker. Cancelling the task withdraws the call.

        ``on_stop`` is called from the event loop when control stops the call: the data plane then closes
        the connection to the worker and reports the end.
        """
        stop = StopSignal(on_stop)
        try:
            answer = await self._control.submit(checked.submit(), stop)
        except FairServeError as error:
            return Rejection(error)
        if isinstance(answer, RefuseCall):
            return Rejection(refusal(answer))
        return Placement(checked, answer, stop, self._control)

    def headers(
        self, checked: CheckedCall, grant: Grant | None = None, queue_s: float | None = None
    ) -> dict[str, str]:
        """Return the headers of the answer, as far as they are known.

        ``queue_s`` is the time in seconds from submission until the worker began.
        """
        call = checked.call
        return call_headers(
            checked.record_id,
            checked.run_id,
            checked.call_id,
            call,
            grant,
            queue_s,
            self._control.limits_in_use(call.tenant, call.app, call.user),
        )

    def model_allowed(self, principal: Principal, name: str) -> bool:
        """Return True if the app's quotas allow calls that name this model."""
        tenant, app = principal.tenant_id or "", principal.app_id or ""
        return self._control.model_allowed(tenant, app, app, name)

    async def _user_of(self, run_id: str) -> str | None:
        view = await self._control.interaction(run_id)
        return None if view is None else view.user
