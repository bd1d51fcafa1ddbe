"""Settings of the console's pages and its sign-ins."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from fairserve.platform.base.client_address import Network, parse_networks
from fairserve.platform.base.roles import ROLES, Role
from fairserve.platform.base.settings import RoomSettings, TextList, word_of_switch

Console = Literal["on", "oidc", "off"]


class ConsoleSettings(RoomSettings):
    """Sign-ins to the console, its live pages, and the proxies in front of it."""

    console: Annotated[Console, BeforeValidator(word_of_switch)] = Field(
        "on",
        description="The console's pages under /console: on; oidc, where only people of the OpenID "
        "provider sign in and tenants have no console; or off.",
    )
    trusted_proxies: TextList = Field(
        (),
        description="Addresses and CIDR networks of the proxies in front of the server, separated "
        "by commas. Only their X-Forwarded-For and X-Forwarded-Proto are trusted; "
        "their connections have no limit per address, and each of their requests "
        "counts for its client.",
        json_schema_extra={"default_text": "none"},
    )

    public_url: str = Field(
        "",
        description="URL under which browsers reach the server, such as "
        "https://fairserve.example.org; the OpenID provider sends people back to it.",
    )
    oidc_issuer: str = Field(
        "",
        max_length=200,
        description="Issuer of the OpenID provider whose people may sign in to the console, exactly "
        "as its discovery document has it. Empty: sign-in with keys only.",
    )
    oidc_client_id: str = Field(
        "", max_length=200, description="Client id of the console at the OpenID provider."
    )
    oidc_client_secret: SecretStr | None = Field(
        None,
        description="Client secret of the console at the OpenID provider. Empty: a public client, "
        "which PKCE alone protects.",
    )
    oidc_groups_claim: str = Field(
        "groups",
        min_length=1,
        description="Claim of the ID token that has a person's groups, a text or a list of texts; "
        "dots lead into objects, as in realm_access.roles.",
    )
    oidc_roles: TextList = Field(
        (),
        description="Roles of groups, separated by commas: viewer=GROUP, operator=GROUP or "
        "admin=GROUP; a role may have several. The highest role of a person counts, and a person "
        "without one is rejected.",
        json_schema_extra={"default_text": "none"},
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value and not is_safe_url(value):
            raise ValueError(
                "must be an https URL without query and fragment; http only for this machine"
            )
        return value

    @field_validator("oidc_client_secret")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is not None and value.get_secret_value() else None

    @field_validator("oidc_roles")
    @classmethod
    def _check_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pair in value:
            role, _, group = pair.partition("=")
            if role not in ROLES or not group:
                raise ValueError("each must be viewer=GROUP, operator=GROUP or admin=GROUP")
        return value

    @model_validator(mode="after")
    def _check_oidc(self) -> Self:
        names = ("oidc_client_id", "oidc_roles", "public_url")
        missing = [name for name in names if not getattr(self, name)]
        if self.oidc_issuer and missing:
            raise ValueError(f"oidc_issuer needs {' and '.join(missing)}")
        if not self.oidc_issuer and self.console == "oidc":
            raise ValueError("console is oidc, which needs oidc_issuer")
        return self

    @property
    def group_roles(self) -> tuple[tuple[str, Role], ...]:
        """Return ``oidc_roles`` as pairs of a group and its role, the highest role first."""
        pairs = [pair.partition("=") for pair in self.oidc_roles]
        return tuple(
            (group, role) for role in reversed(ROLES) for name, _, group in pairs if name == role
        )

    @property
    def oidc_title(self) -> str:
        """Return the provider's name for people."""
        return urlsplit(self.oidc_issuer).netloc

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """Return ``trusted_proxies`` parsed for :mod:`fairserve.platform.base.client_address`."""
        return parse_networks(self.trusted_proxies)


def is_safe_url(text: str) -> bool:
    """Return whether a text is an https URL, or an http URL of this machine."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if not host or port == 0 or parts.username is not None or parts.query or parts.fragment:
        return False
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
