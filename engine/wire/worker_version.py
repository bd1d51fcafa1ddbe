"""Whether a vLLM server is one that the platform knows, by what its ``/version`` says."""

from __future__ import annotations

import re

OLDEST = (0, 32)
"""The first version of vLLM that this client was run against."""

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\D|$)")
_MISSING = (
    "it may not know vllm_xargs (fair order inside the worker) or cache_salt (isolated caches), call its"
    " metrics otherwise (what other clients hold there is not seen), or tell KV events that cannot be"
    " read (the router then goes by its own view)"
)


def version_warning(version: str | None) -> str | None:
    """What may be missing in a worker of this version; None if it is known, or tells none."""
    if version is None:
        return None
    found = _RELEASE.match(version)
    if found is None:
        return f"its version {version[:80]!r} cannot be read: {_MISSING}"
    if (int(found[1]), int(found[2])) >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return f"vLLM {version[:80]} is older than {oldest}: {_MISSING}"
