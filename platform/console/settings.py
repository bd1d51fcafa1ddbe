"""Settings of the console's pages."""

from __future__ import annotations

from pydantic import Field, field_validator

from fairserve.platform.base.client_address import Network, parse_networks
from fairserve.platform.base.settings import RoomSettings, TextList


class ConsoleSettings(RoomSettings):
    """Sign-ins to the console, its live pages, and the proxies in front of it."""

    console: bool = Field(True, description="Serve the console's pages under /console.")
    trusted_proxies: TextList = Field(
        (),
        description="Addresses and CIDR networks of the proxies in front of the server, separated "
        "by commas. Only their X-Forwarded-For and X-Forwarded-Proto are trusted; "
        "their connections have no limit per address, and each of their requests "
        "counts for its client.",
        json_schema_extra={"default_text": "none"},
    )
    console_sign_ins: int = Field(
        10,
        ge=1,
        le=1000,
        description="Wrong keys that one address may submit at the console's sign-in within five "
        "minutes; further attempts are rejected.",
    )
    console_sign_ins_in_all: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="Wrong keys from all addresses within five minutes, above which each sign-in is "
        "delayed by three seconds; none is rejected for this reason.",
    )
    console_streams: int = Field(
        200,
        ge=1,
        le=10_000,
        description="Live pages of the console that may be open at a time; further pages are not "
        "live.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """Return ``trusted_proxies`` parsed for :mod:`fairserve.platform.base.client_address`."""
        return parse_networks(self.trusted_proxies)
