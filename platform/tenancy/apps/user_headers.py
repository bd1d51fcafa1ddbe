"""Names of the request headers that may name an app's end user.

Clients that cannot set the body's ``user`` often send a header, each product one of its own name. An app
chooses the names; a header that already means something else is not allowed, because its value would be
stored as the id of a user.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from fairserve.interactions.tracking import identity

DEFAULT_USER_HEADERS = ("x-user-id",)
MAX_USER_HEADERS = 4
MAX_NAME_CHARS = 64

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
"""A header's name in lower case (RFC 9110, section 5.6.2)."""
_RESERVED = frozenset(
    {
        "api-key",
        "authorization",
        "connection",
        "cookie",
        "date",
        "expect",
        "forwarded",
        "host",
        "idempotency-key",
        "keep-alive",
        "origin",
        "referer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
        "x-api-key",
        "x-request-id",
        identity.RUN_HEADER,
        identity.FINAL_HEADER,
        identity.CALL_HEADER,
        identity.PARENTS_HEADER,
        identity.AGENT_HEADER,
        identity.TRACEPARENT,
        identity.DYNAMO_PARENT,
        identity.DYNAMO_FINAL,
        identity.CLAUDE_CODE_AGENT,
        *identity.ALIASES,
    }
)
_RESERVED_PREFIXES = (
    "accept",
    "access-control-",
    "content-",
    "if-",
    "proxy-",
    "sec-",
    "x-fairserve-",
    "x-forwarded-",
    "x-ratelimit-",
    "x-stainless-",
)


def normal_header(name: str) -> str:
    """Return a header's name in lower case. Raises ValueError for one that cannot name a user."""
    lower = name.strip().lower()
    if not _TOKEN.fullmatch(lower) or len(lower) > MAX_NAME_CHARS:
        raise ValueError(
            "must be the name of a header: letters, digits and hyphens, at most"
            f" {MAX_NAME_CHARS} characters"
        )
    if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
        raise ValueError(f"{lower} has another meaning; choose a header of your own")
    return lower


def _distinct(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


HeaderName = Annotated[
    str,
    AfterValidator(normal_header),
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_CHARS}),
]
UserHeaders = Annotated[
    list[HeaderName], Field(max_length=MAX_USER_HEADERS), AfterValidator(_distinct)
]
"""Headers in the order of precedence; empty: no header names a user."""
