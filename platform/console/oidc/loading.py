"""Loads the client of the OpenID provider, which needs the extra ``oidc``, if one is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairserve.platform.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from fairserve.platform.console.oidc.provider import Provider


def load_provider(settings: ConsoleSettings) -> Provider | None:
    """Return the configured provider; None if there is none. Raises ValueError without the extra."""
    if not settings.oidc_issuer or settings.console == "off":
        return None
    try:
        from fairserve.platform.console.oidc.provider import Provider
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("authlib", "joserfc"):
            raise
        raise ValueError(
            "oidc_issuer is set, and Authlib is not installed: pip install 'fairserve[oidc]'"
        ) from error
    return Provider(settings)
