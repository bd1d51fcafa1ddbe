"""Find the client of a gateway's request: the unit between which service is divided fairly.

A request with an app key of ours belongs to that app, as at our own API. Any other one belongs to the
app that the operator has named, and a header that the gateway sets names its client, a user of that
app; without the header it is the user ``default-flow``, as the extension calls it. Neither the body nor
other headers name the user of such a request: a client that may choose would have a share for each name.

Weakness: a gateway that passes on its clients' own header lets them choose, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairserve.platform.base.errors import AuthenticationError
from fairserve.platform.db.keys import KEY_PREFIX
from fairserve.platform.serving.decision.end_user import user_in_headers
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.app_principal import AppPrincipal
from fairserve.platform.tenancy.auth import Principal

DEFAULT_CLIENT = "default-flow"
FAIRNESS_HEADER = "x-gateway-inference-fairness-id"
"""Header of the gateway that names the client of a request without an app key."""
OBJECTIVE_HEADER = "x-gateway-inference-objective"
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """The client of one request."""

    principal: Principal
    user: str | None
    """User of the operator's app; None: the app key's own rules find the user."""
    background: bool = False
    """The request's objective is one of the class below all others."""
    key_headers: tuple[str, ...] = ()
    """Headers with our key, which no worker may see."""

    def adapt(self, request: CallRequest) -> CallRequest:
        """Return the request for the decision service with this client."""
        user = request.user if self.user is None else self.user
        return replace(request, user=user, background=self.background)


class GatewayClients:
    """Finds clients. Cost per request: a lookup in the cache of keys or of the app."""

    def __init__(
        self,
        decisions: DecisionService,
        app: AppPrincipal | None,
        background_objectives: tuple[str, ...],
    ) -> None:
        """``app`` owns the requests without an app key; None: they are rejected."""
        self._decisions = decisions
        self._app = app
        self._background_objectives = frozenset(background_objectives)

    async def find(self, headers: Mapping[str, str]) -> GatewayClient:
        """Return the client of a request. Raises a FairServeError. ``headers`` have lower-case names."""
        background = headers.get(OBJECTIVE_HEADER, "") in self._background_objectives
        ours = {name: value for name, value in headers.items() if _is_our_key(name, value)}
        if ours:
            app = await self._decisions.authenticate(ours)
            return GatewayClient(app, None, background, tuple(ours))
        if self._app is None:
            raise AuthenticationError(
                "an app key is needed: Authorization: Bearer sk-fs-..., or x-api-key: sk-fs-...",
                headers={"WWW-Authenticate": "Bearer"},
            )
        user = user_in_headers(headers, (FAIRNESS_HEADER,)) or DEFAULT_CLIENT
        return GatewayClient(await self._app.get(), user, background)


def _is_our_key(name: str, value: str) -> bool:
    """Return whether a header carries a key of ours: gateways and model servers have others."""
    if name == "authorization":
        scheme, token = value[: len(_BEARER)], value[len(_BEARER) :].strip()
        return scheme.lower() == _BEARER and token.startswith(KEY_PREFIX)
    return name == "x-api-key" and value.strip().startswith(KEY_PREFIX)
