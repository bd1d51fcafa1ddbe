"""Limits of the edge that both data planes share, as values.

They are settings of rooms above this one, so the server passes them.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_KIB = 64
"""Largest request line and headers, in KiB; the embedded plane's is the same."""
MIN_BODY_BYTES_PER_S = 64 * 1024
"""Bytes of a body whose arrival extends its time limit by a second, as in the embedded plane."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of Envoy's public side. Fields are named as the settings they are set from."""

    max_connections: int = 8_000
    request_head_timeout_s: float = 10.0
    request_body_timeout_s: float = 30.0
    keep_alive_timeout_s: float = 75.0
    max_body_bytes: int = 8 * 1024 * 1024
    file_max_bytes: int = 100 * 1024 * 1024
    max_queue_wait_s: float = 360.0
    max_queued_calls: int = 10_000
    client_buffer_bytes: int = 256 * 1024
    client_write_timeout_s: float = 30.0
    behind_proxy: bool = False
    """Proxies precede Envoy (``trusted_proxies`` is not empty), so that it keeps their
    ``X-Forwarded-Proto``."""

    @property
    def request_timeout_s(self) -> float:
        """Return the seconds in which the largest body must have arrived.

        Envoy has one limit for all paths; the server bounds slow bodies by what has arrived.
        """
        largest_bytes = max(self.max_body_bytes, self.file_max_bytes)
        return self.request_body_timeout_s + largest_bytes / MIN_BODY_BYTES_PER_S
