"""Sign-in of people at the OpenID provider: authorization code flow with PKCE.

``GET /console/sign-in/oidc`` redirects to the provider, which sends the browser back to the callback.
The session's cookie has ``SameSite=Strict``, so a redirect that began at the provider would not send it:
the callback answers with a page that opens the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.client_address import client_address
from fairserve.platform.base.errors import (
    AuthenticationError,
    FairServeError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.console.oidc.attempt import MAX_AGE_S, Attempt
from fairserve.platform.console.person import NoRoleError, Person
from fairserve.platform.console.rendering import page
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.sign_in.steps import (
    SIGN_IN,
    audit_failure,
    begin_session,
    is_secure,
    local,
    sign_in_page,
)
from fairserve.platform.console.state import ConsoleState

if TYPE_CHECKING:
    from fairserve.platform.console.oidc.provider import Provider

COOKIE = "fairserve_sign_in"
PLACE = f"{SIGN_IN}/oidc"
MAX_CODE_CHARS = 4096

router = APIRouter(prefix=PLACE)


@router.get("")
async def begin(request: Request, next: str = "") -> Response:
    """Redirect to the provider."""
    attempt = Attempt.begin(local(next))
    try:
        url = await _provider(request).authorization_url(attempt)
    except UnavailableError as error:
        return sign_in_page(request, next, error)
    answer = RedirectResponse(url, status_code=303, headers={"Cache-Control": "no-store"})
    answer.set_cookie(
        COOKIE,
        attempt.cookie,
        max_age=MAX_AGE_S,
        path=PLACE,
        httponly=True,
        samesite="lax",  # the provider's redirect sends it
        secure=is_secure(request),
    )
    return answer


@router.get("/callback")
async def finish(request: Request, code: str = "", state: str = "") -> Response:
    """Begin the session of the person that the provider has authenticated."""
    provider = _provider(request)
    console: ConsoleState = request.app.state.console
    settings: ConsoleSettings = request.app.state.settings.console
    address = client_address(request.scope, settings.proxy_networks)
    attempt = Attempt.of_cookie(request.cookies.get(COOKIE, ""))
    onward = local(attempt.onward if attempt else "")
    try:
        async with console.sign_ins.attempt(address):
            person = await _person(provider, attempt, code, state)
        answer: Response = page(request, None, "signed_in", onward=onward)
        await begin_session(request, person, address, answer)
    except FairServeError as error:
        answer = sign_in_page(request, onward, error)
        if isinstance(error, NoRoleError):
            await audit_failure(request, address, error, "oidc", actor=error.actor)
        elif not isinstance(error, UnavailableError):
            await audit_failure(request, address, error, "oidc")
    answer.headers["Referrer-Policy"] = "no-referrer"  # this page's address has the code
    answer.delete_cookie(COOKIE, path=PLACE)
    return answer


async def _person(provider: Provider, attempt: Attempt | None, code: str, state: str) -> Person:
    if attempt is None or not attempt.is_own(state):
        raise AuthenticationError(
            "this sign-in was begun in another window or too long ago; sign in again",
            code="oidc_state",
        )
    if not 0 < len(code) <= MAX_CODE_CHARS:
        raise AuthenticationError("the provider denied the sign-in", code="oidc_denied")
    return await provider.person(code, attempt)


def _provider(request: Request) -> Provider:
    provider: Provider | None = request.app.state.console.oidc
    if provider is None:
        raise NotFoundError(f"there is no page {request.url.path}")
    return provider
