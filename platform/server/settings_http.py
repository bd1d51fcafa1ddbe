"""Settings of client connections and of what clients send."""

from __future__ import annotations

from pydantic import Field

from fairserve.platform.server.settings_console import ConsoleSettings


class HttpSettings(ConsoleSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

    max_connections: int = Field(
        8_000,
        ge=1,
        le=1_000_000,
        description="Client connections at a time; more answer 503. Fewer where the hard limit of open "
        "files does not allow two for each beside the server's own 256.",
    )
    max_connections_per_address: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="Connections of one client address (for IPv6, one /64 network) at a time; more "
        "answer 429. At most half of all where the limit of open files lowers max_connections.",
    )
    request_head_timeout_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="How long a client may take to send the request line and the headers (64 KiB at "
        "most), from its connection or the first byte on; then 408, or the end of an idle connection.",
    )
    request_body_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="How long a client may take to send a body, and a second more for each 64 KiB that "
        "arrived; then 408.",
    )
    keep_alive_timeout_s: int = Field(
        75,
        ge=1,
        le=3600,
        description="How long a connection may be idle between two requests.",
    )
