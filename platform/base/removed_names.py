"""Names of settings that were removed, each with what replaces it.

A server that is started with one of them does not start: silently ignored, a removed limit would no
longer protect, and a removed switch would be on again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LABORATORY_PARAMETER = (
    "the server uses the system's value; only `fairserve simulate --set` sets another"
)
"""Replacement of each parameter that operators could set before, by the name that it still has there."""

_KEPT_DAYS = "content_retention_days is the retention of programs, responses, batches and files"
_PARAMETER = "it is a parameter of the system: --set {}=VALUE, or /admin/throttling"

_REPLACED = {
    # The data plane Envoy. A server that had TLS would serve plain HTTP at the same address.
    "data_plane": "the data plane Envoy was removed; put a proxy in front of the server for TLS and"
    " HTTP/2 (docs/guide/proxy.md)",
    "envoy_tls_cert": "the data plane Envoy was removed; put a proxy in front of the server for TLS and"
    " HTTP/2 (docs/guide/proxy.md)",
    # The system.
    "overload_high": _PARAMETER.format("high_watermark"),
    "overload_low": _PARAMETER.format("low_watermark"),
    "immunity_factor": _PARAMETER.format("immunity_factor"),
    "feed_window": "the feed window is that of the system; choose another system with --system",
    "local_scheduler": "embedded workers use the scheduler of the system; choose another system with"
    " --system",
}

REMOVED_SETTINGS: Mapping[str, str] = MappingProxyType(_REPLACED)
"""What replaces each removed setting, by its name; the flag and the variable have the same name."""
