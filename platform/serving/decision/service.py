"""From a request to a worker and headers, or to an error: the decisions about a call.

The relay and the picker call four steps, in the order in which a request arrives. ``authenticate`` needs
the headers only: the body of a stranger is not read. ``max_body_bytes`` and ``check_size`` bound the
body. ``check`` validates, counts and identifies without a side effect. ``place`` asks control and waits
for the grant. Protocols parse the requests, relay and picker carry the tokens of the placements, and
neither decides anything. What ends a request without an answer is raised as a FairServeError, which each
protocol writes in its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairserve.platform.base.errors import BodyTooLargeError, FairServeError
from fairserve.platform.control.messages import Attached, Cancel, Grant, RejectCall
from fairserve.platform.control.service import ControlService
from fairserve.platform.fleet.models import BODY_BASE_BYTES, Models
from fairserve.platform.fleet.prompts.reader import Prompt
from fairserve.platform.serving.decision.check import CheckedCall, CheckOptions, check, count
from fairserve.platform.serving.decision.headers import call_headers, limit_headers
from fairserve.platform.serving.decision.rejection import (
    model_not_allowed,
    rejection_error,
)
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.tenancy.auth import Authenticator, Principal, key_of, require_scope

CANNOT_CONTINUE = frozenset(
    {"interaction_closed", "interaction_not_found", "program_run", "unknown_parent"}
)
"""Codes of errors of a call whose run has ended since it was found: it begins a new run."""


class DecisionService:
    """Decides about the calls of all protocols. Keeps no state of its own."""

    def __init__(
        self,
        authenticator: Authenticator,
        control: ControlService,
        models: Models,
        options: CheckOptions = CheckOptions(),
    ) -> None:
        self.models = models
        self._authenticator = authenticator
        self.control = control
        """To which the driver of a call reports it."""
        self._options = options

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Return the app whose key the headers carry, before the body is read.

        ``headers`` has lower-case names.
        """
        return require_scope(await self._authenticator.authenticate(key_of(headers)), "app")

    def max_body_bytes(self, principal: Principal) -> int | None:
        """Return the largest body in bytes for this app: that of its largest model; None: no limit."""
        return self.models.max_body_bytes(lambda name: self.model_allowed(principal, name))

    def check_size(self, size_bytes: int, model: str) -> None:
        """Raise BodyTooLargeError if a body is larger than the context of its model. Any thread."""
        if size_bytes <= BODY_BASE_BYTES:
            return
        limit = self.models.max_body_bytes_of(model)
        if limit is not None and size_bytes > limit:
            raise BodyTooLargeError(
                f"the body has {size_bytes} bytes; allowed for {model!r}: {limit}, which is more than"
                " its context holds"
            )

    async def check(self, request: CallRequest) -> CheckedCall:
        """Return the call of a request. Nothing is recorded."""
        return await check(request, self.models, self._options, self.control)

    async def count(self, request: CallRequest) -> Prompt:
        """Return the prompt of a request, of which no call is made."""
        if not self.model_allowed(request.principal, request.model):
            raise model_not_allowed()
        return await count(request, self.models)

    async def place(
        self, checked: CheckedCall, on_stop: Callable[[Cancel], None] = lambda _: None
    ) -> Grant:
        """Submit a call and wait for its worker. Cancelling the task withdraws the call.

        ``on_stop`` is called from the event loop when control stops the call: the driver then closes
        the connection to the worker and reports the end.
        """

        def on_message(message: Attached | Cancel) -> None:
            if isinstance(message, Attached):
                checked.attached = message
            else:
                on_stop(message)

        try:
            answer = await self.control.submit(checked.message, on_message)
        except FairServeError as error:
            if not checked.continues or error.code not in CANNOT_CONTINUE:
                raise
            # Nothing is recorded yet, so the call may begin again.
            checked.begin_new_run()
            return await self.place(checked, on_stop)
        if isinstance(answer, RejectCall):
            raise rejection_error(answer, checked.size_field)
        return answer

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
            call.served_model,
            checked.attached,
            grant,
            queue_s,
            self.control.limits_in_use(call.tenant, call.app, call.user),
        )

    def limit_headers(self, principal: Principal) -> dict[str, str]:
        """Return the headers of the limits of an app's calls that name no user."""
        tenant, app = principal.tenant_id or "", principal.app_id or ""
        return limit_headers(self.control.limits_in_use(tenant, app, app))

    def model_allowed(self, principal: Principal, name: str) -> bool:
        """Return True if the app's quotas allow calls that name this model."""
        tenant, app = principal.tenant_id or "", principal.app_id or ""
        return self.control.model_allowed(tenant, app, app, name)
