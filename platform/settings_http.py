"""Settings of client connections and of what clients send."""

from __future__ import annotations

import json
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from fairserve.platform.settings_console import ConsoleSettings


class HttpSettings(ConsoleSettings):
    """A part of :class:`fairserve.platform.settings.Settings`."""

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
    trusted_proxies: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of reverse proxies whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed, such as 127.0.0.1,10.1.2.0/24, separated by commas. Their "
        "connections have no limit per address; each of their requests counts for its client.",
        json_schema_extra={"default_text": "none"},
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

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _parse_proxies(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        parts = json.loads(text) if text.startswith("[") else text.split(",")
        try:
            return tuple(ip_network(part.strip()) for part in parts if part.strip())
        except ValueError:
            raise ValueError(
                "each is an address or network, such as 10.1.2.3 or fd00::/8"
            ) from None
