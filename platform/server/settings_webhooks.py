"""Settings of webhooks."""

from __future__ import annotations

import json
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from fairserve.platform.server.settings_billing import BillingSettings


class WebhookSettings(BillingSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

    webhook_interval_s: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="How often the server looks for webhook deliveries that are due.",
    )
    webhook_timeout_s: float = Field(
        10.0,
        gt=0,
        le=60,
        description="How long a webhook's receiver may take to answer, name look-up included.",
    )
    webhook_max_attempts: int = Field(
        10,
        ge=1,
        le=100,
        description="Attempts after which a webhook delivery is dead; the first nine follow each other "
        "within a day, later ones every 12 hours.",
    )
    webhook_retention_days: int = Field(
        7,
        ge=1,
        le=365,
        description="Days that delivered and dead webhook deliveries, and their events, are kept.",
    )
    webhook_allow_http: bool = Field(
        False,
        description="Let webhooks go to http URLs, too, which anybody on the way reads and changes.",
    )
    webhook_allowed_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        (),
        description="Networks that webhooks may go to although they are not public, such as "
        "10.1.2.0/24, separated by commas. Every tenant can then send requests there.",
        json_schema_extra={"default_text": "none"},
    )

    @field_validator("webhook_allowed_networks", mode="before")
    @classmethod
    def _parse_networks(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        parts = json.loads(text) if text.startswith("[") else text.split(",")
        try:
            return tuple(ip_network(part.strip()) for part in parts if part.strip())
        except ValueError:
            raise ValueError("each is a network, such as 10.1.2.0/24 or fd00::/8") from None
