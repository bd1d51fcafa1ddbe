"""The OpenID provider: its discovery document, its keys, and the person of an authorization code.

Requests go to the configured issuer and to the endpoints that its discovery document names, without
redirects and proxies, with a time-out and a bound on the answer, ten at a time. Document and keys are
cached for an hour; an unknown key id fetches the keys again, at most every ten seconds, so a rotation
needs no restart. After a failed fetch the next one waits for two seconds.

Authlib prepares the requests and validates the claims of the ID token. Only signatures with the
provider's private key are accepted, never ``none`` and never one with the client secret.

Weakness: groups are read from the ID token, not from the provider's userinfo endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from fairserve.platform.base.errors import AuthenticationError, UnavailableError
from fairserve.platform.base.roles import Role
from fairserve.platform.console.oidc.attempt import Attempt
from fairserve.platform.console.person import MAX_SUBJECT_CHARS, NoRoleError, Person
from fairserve.platform.console.settings import ConsoleSettings, is_safe_url
from fairserve.platform.db.base import NAME_CHARS

logger = logging.getLogger(__name__)

CALLBACK = "/console/sign-in/oidc/callback"
"""Path of the redirect URL, which the provider must know."""
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
TIMEOUT_S = 10.0
MAX_AGE_S = 3600.0
KEYS_RETRY_S = 10.0
"""Seconds between two fetches of the keys because of unknown key ids."""
RETRY_S = 2.0
"""Seconds without another request after one that failed."""
MAX_REQUESTS = 10
"""Requests to the provider at a time."""
MAX_ANSWER_BYTES = 1024 * 1024
LEEWAY_S = 60
"""Tolerated difference between the clocks of provider and server."""
_METHODS = ("client_secret_basic", "client_secret_post")

Json = dict[str, Any]


SCOPES = ("openid", "profile", "email")
GROUPS_SCOPE = "groups"
"""Scope of a person's groups at some providers."""


def _scopes(discovery: Mapping[str, Any]) -> list[str]:
    """Return the scopes of a sign-in; that of the groups only where the provider has one."""
    supported = discovery.get("scopes_supported")
    has_groups = isinstance(supported, list) and GROUPS_SCOPE in supported
    return [*SCOPES, GROUPS_SCOPE] if has_groups else list(SCOPES)


class Provider:
    """Client of one provider. Belongs to the event loop."""

    def __init__(
        self, settings: ConsoleSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._requests = 0
        self._discovery = _Cached(clock)
        self._keys = _Cached(clock)

    async def authorization_url(self, attempt: Attempt) -> str:
        """Return the provider's page for a sign-in. Raises UnavailableError."""
        settings = self._settings
        found = await self._discovered()
        return str(
            prepare_grant_uri(
                found["authorization_endpoint"],
                settings.oidc_client_id,
                "code",
                redirect_uri=self._callback_url,
                scope=_scopes(found),
                state=attempt.state,
                nonce=attempt.nonce,
                code_challenge=create_s256_code_challenge(attempt.verifier),
                code_challenge_method="S256",
            )
        )

    async def person(self, code: str, attempt: Attempt) -> Person:
        """Exchange an authorization code for the person who signed in.

        Raises AuthenticationError, NoRoleError or UnavailableError.
        """
        found = await self._discovered()
        answer = await self._tokens(found, code, attempt)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise self._rejected("the token endpoint sent no ID token")
        claims = await self._claims(found, token, answer.get("access_token"), attempt)
        subject, name = str(claims["sub"]), _name(claims)
        if not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
            raise self._rejected(f"sub must have 1 to {MAX_SUBJECT_CHARS} printable characters")
        role = self._role(groups_of(claims, self._settings.oidc_groups_claim))
        if role is None:
            raise NoRoleError(subject, name, self._settings.oidc_title)
        return Person(self._settings.oidc_issuer, subject, name, role)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def _callback_url(self) -> str:
        return self._settings.public_url.rstrip("/") + CALLBACK

    def _role(self, groups: frozenset[str]) -> Role | None:
        return next((role for group, role in self._settings.group_roles if group in groups), None)

    async def _discovered(self) -> Json:
        """Return the provider's discovery document."""
        issuer = self._settings.oidc_issuer

        async def fetch() -> Json:
            url = issuer.rstrip("/") + "/.well-known/openid-configuration"
            status, found = await self._request("GET", url)
            if status != 200:
                raise self._unavailable(f"{url} answers {status}")
            if found.get("issuer") != issuer:
                raise self._unavailable(
                    f"its discovery document names the issuer {found.get('issuer')!r},"
                    f" oidc_issuer is {issuer!r}"
                )
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not self._is_allowed(found.get(name)):
                    raise self._unavailable(f"{name} of its discovery document is not an https URL")
            return found

        document: Json = await self._discovery.get(fetch, MAX_AGE_S)
        return document

    def _is_allowed(self, url: object) -> bool:
        if not isinstance(url, str):
            return False
        # An endpoint may have a query.
        plain = urlsplit(url)._replace(query="").geturl()
        secure = self._settings.oidc_issuer.startswith("https:")
        return is_safe_url(plain) and (url.startswith("https:") or not secure)

    async def _tokens(self, found: Json, code: str, attempt: Attempt) -> Json:
        settings = self._settings
        secret = settings.oidc_client_secret
        # Providers that name no method take the first one.
        offered = found.get("token_endpoint_auth_methods_supported") or _METHODS
        method = next((each for each in _METHODS if each in offered), _METHODS[0])
        auth = ClientAuth(
            settings.oidc_client_id,
            "" if secret is None else secret.get_secret_value(),
            "none" if secret is None else method,
        )
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback_url,
            "code_verifier": attempt.verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        url, headers, body = auth.prepare("POST", found["token_endpoint"], headers, urlencode(form))
        status, answer = await self._request("POST", url, headers=headers, data=body)
        if status >= 500:
            raise self._unavailable(f"its token endpoint answers {status}")
        if status != 200:
            raise self._rejected(f"its token endpoint answers {status}, {answer.get('error')!r}")
        return answer

    async def _claims(
        self, found: Json, token: str, access_token: object, attempt: Attempt
    ) -> Mapping[str, Any]:
        """Return the validated claims of an ID token."""

        async def fetch() -> KeySet:
            status, answer = await self._request("GET", found["jwks_uri"])
            if status != 200:
                raise self._unavailable(f"its keys answer {status}")
            return _key_set(answer)

        try:
            keys = await self._keys.get(fetch, MAX_AGE_S)
            try:
                decoded = jwt.decode(token, keys, algorithms=list(ALGORITHMS))
            except InvalidKeyIdError:
                keys = await self._keys.get(fetch, KEYS_RETRY_S)
                decoded = jwt.decode(token, keys, algorithms=list(ALGORITHMS))
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self._settings.oidc_issuer},
                    "aud": {"essential": True, "value": self._settings.oidc_client_id},
                },
                params={
                    "nonce": attempt.nonce,
                    "client_id": self._settings.oidc_client_id,
                    "access_token": access_token,
                },
            )
            claims.validate(now=int(time.time()), leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise self._rejected(f"its ID token is not valid: {error}") from error
        return dict(claims)

    async def _request(self, method: str, url: str, **more: Any) -> tuple[int, Json]:
        """Return status and JSON object of an answer. Raises UnavailableError."""
        try:
            with self._one_request():
                async with (
                    ClientSession(timeout=ClientTimeout(total=TIMEOUT_S)) as http,
                    http.request(method, url, allow_redirects=False, **more) as answer,
                ):
                    body = bytearray()
                    async for piece in answer.content.iter_chunked(1 << 16):
                        body += piece
                        if len(body) > MAX_ANSWER_BYTES:
                            raise self._unavailable(f"{url} answers more than a megabyte")
                    status = answer.status
        except (ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise self._unavailable(f"{url} does not answer: {reason}") from error
        try:
            found = orjson.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if status == 200:
                raise self._unavailable(f"{url} does not answer with a JSON object")
            found = {}
        return status, found

    @contextmanager
    def _one_request(self) -> Iterator[None]:
        if self._requests >= MAX_REQUESTS:
            raise self._unavailable(f"{MAX_REQUESTS} requests to it are in progress")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def _unavailable(self, reason: str) -> UnavailableError:
        logger.warning("sign-in at %s: %s", self._settings.oidc_issuer, reason)
        other = ", or sign in with a key" if self._settings.console == "on" else ""
        return UnavailableError(
            f"{self._settings.oidc_title} cannot be used for sign-ins at the moment; retry{other}",
            code="provider_unavailable",
            headers={"Retry-After": "5"},
        )

    def _rejected(self, reason: str) -> AuthenticationError:
        logger.warning("rejected a sign-in at %s: %s", self._settings.oidc_issuer, reason)
        return AuthenticationError(
            f"the answer of {self._settings.oidc_title} is not valid; sign in again",
            code="oidc_rejected",
        )


class _Cached:
    """A document of the provider, fetched by one caller at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._value: Any = None
        self._fetched_s = self._failed_s = float("-inf")
        self._error: UnavailableError | None = None

    async def get(self, fetch: Callable[[], Awaitable[Any]], max_age_s: float) -> Any:
        """Return the document, fetched again if it is older. Raises UnavailableError."""
        async with self._lock:
            now_s = self._clock()
            if self._value is not None and now_s - self._fetched_s < max_age_s:
                return self._value
            if self._error is not None and now_s - self._failed_s < RETRY_S:
                raise self._error.with_traceback(None)
            try:
                self._value = await fetch()
            except UnavailableError as error:
                self._error, self._failed_s = error, self._clock()
                raise
            self._fetched_s, self._error = self._clock(), None
            return self._value


def groups_of(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return a person's groups: the claim of this name, else that at the path of its dots."""
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return frozenset((found,))
    if not isinstance(found, list):
        return frozenset()
    return frozenset(each for each in found if isinstance(each, str))


def _key_set(document: Json) -> KeySet:
    """Return the keys for signatures; keys of unknown kinds are ignored."""
    listed = document.get("keys")
    usable = [
        key
        for key in (listed if isinstance(listed, list) else [])
        if isinstance(key, dict)
        and key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
    ]
    return KeySet.import_key_set({"keys": usable})


def _name(claims: Mapping[str, Any]) -> str:
    """Return the name of a person for display; empty if the token has none."""
    for claim in ("preferred_username", "email", "name"):
        value = claims.get(claim)
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value.strip()[:NAME_CHARS]
    return ""
