"""A sign-in at the provider in progress, which only the browser stores.

Its cookie has 256 random bits, from which state, nonce and PKCE verifier are derived. So a callback
counts only in the browser that began the sign-in, on every server, and nothing has to be bounded or
expired here.

Weakness: a browser has one sign-in in progress; that of another window replaces it.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Self
from urllib.parse import quote, unquote

MAX_AGE_S = 600
"""Seconds that a person may take at the provider."""
MAX_COOKIE_CHARS = 3000
_SECRET_CHARS = 43


@dataclass(frozen=True, slots=True)
class Attempt:
    """The secret of one sign-in, and the page that follows it."""

    secret: str = field(repr=False)
    onward: str

    @classmethod
    def begin(cls, onward: str) -> Self:
        """Return a new attempt."""
        attempt = cls(secrets.token_urlsafe(32), onward)
        return attempt if len(attempt.cookie) <= MAX_COOKIE_CHARS else cls(attempt.secret, "")

    @classmethod
    def of_cookie(cls, cookie: str) -> Self | None:
        """Return the attempt of a cookie; None if there is none."""
        secret, _, onward = cookie.partition(".")
        if len(cookie) > MAX_COOKIE_CHARS or len(secret) != _SECRET_CHARS:
            return None
        return cls(secret, unquote(onward))

    @property
    def cookie(self) -> str:
        """Return the value of the browser's cookie."""
        return f"{self.secret}.{quote(self.onward, safe='')}"

    @property
    def state(self) -> str:
        """Return the parameter that ties the callback to this browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Return the claim that ties the ID token to this sign-in."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Return the PKCE verifier, which ties the code to this sign-in."""
        return self._derived("verifier")

    def is_own(self, state: str) -> bool:
        """Return whether a callback's ``state`` is that of this attempt."""
        return compare_digest(state.encode(), self.state.encode())

    def _derived(self, purpose: str) -> str:
        digest = sha256(f"{purpose}\x00{self.secret}".encode()).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
