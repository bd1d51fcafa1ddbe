"""Checks a vLLM server's version against the releases that the platform knows."""

from __future__ import annotations

import re

OLDEST = (0, 32)
"""Oldest version of vLLM with which this client is tested."""

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\D|$)")
_MISSING = (
    "it may not know vllm_xargs (fair order inside the worker) or cache_salt (isolated caches), call its"
    " metrics otherwise (the load of other clients is not seen), or publish KV events that cannot be"
    " read (the router then uses its own view)"
)


def version_warning(version: str | None) -> str | None:
    """Return a warning for a worker of this version; None if the version is known, or absent."""
    if version is None:
        return None
    found = _RELEASE.match(version)
    if found is None:
        return f"its version {version[:80]!r} cannot be read: {_MISSING}"
    if (int(found[1]), int(found[2])) >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return f"vLLM {version[:80]} is older than {oldest}: {_MISSING}"
