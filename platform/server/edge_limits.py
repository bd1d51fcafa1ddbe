"""Limits of Envoy's public side, from the settings that the embedded plane obeys, too."""

from __future__ import annotations

from fairserve.platform.envoy.limits import Limits
from fairserve.platform.server.http.descriptors import connections_within
from fairserve.platform.server.settings import Settings


def edge_limits(settings: Settings, descriptors: int | None = None) -> Limits:
    """Return the limits for the settings.

    ``descriptors`` is the number of files that Envoy can open, which bounds its connections; None: Envoy
    runs elsewhere.
    """
    server, serving, control = settings.server, settings.serving, settings.control
    max_connections = server.max_connections
    if descriptors is not None:
        max_connections = min(max_connections, connections_within(descriptors))
    return Limits(
        max_connections=max_connections,
        request_head_timeout_s=server.request_head_timeout_s,
        request_body_timeout_s=server.request_body_timeout_s,
        keep_alive_timeout_s=server.keep_alive_timeout_s,
        max_body_bytes=server.max_body_bytes,
        file_max_bytes=serving.file_max_bytes,
        max_queue_wait_s=control.max_queue_wait_s,
        max_queued_calls=control.max_queued_calls,
        client_buffer_bytes=serving.client_buffer_bytes,
        client_write_timeout_s=serving.client_write_timeout_s,
        behind_proxy=bool(settings.console.trusted_proxies),
    )
