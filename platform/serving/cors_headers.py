"""The headers by which pages of an app's origins may read the answer to the app's key."""

from __future__ import annotations

from collections.abc import Iterable

from fairserve.platform.tenancy.auth import Principal

_EXPOSED = ("x-interaction-id", "x-call-id", "x-request-id", "request-id", "retry-after")
_EXPOSED_PREFIXES = ("x-fairserve-", "x-ratelimit-")


def cors_headers(
    principal: Principal | None, origin: str | None, names: Iterable[str]
) -> dict[str, str]:
    """Return the headers for an answer; empty unless the app has origins.

    ``origin`` is the one that the request names, ``names`` are the answer's headers in lower case.
    """
    if principal is None or not principal.origins:
        return {}
    if origin not in principal.origins:
        return {"vary": "Origin"}
    exposed = [
        name
        for name in dict.fromkeys(names)
        if name in _EXPOSED or name.startswith(_EXPOSED_PREFIXES)
    ]
    return {
        "vary": "Origin",
        "access-control-allow-origin": origin,
        "access-control-expose-headers": ", ".join(exposed),
    }
