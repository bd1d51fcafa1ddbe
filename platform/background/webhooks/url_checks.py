"""Check the URL of a webhook before the transaction of its change begins: a DNS lookup can be slow."""

from __future__ import annotations

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.delivery import guard_of
from fairserve.platform.background.webhooks.guard import UnsafeUrlError
from fairserve.platform.base.errors import InvalidRequestError, RateLimitedError, UnavailableError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.tenancy.auth import Principal

looking_up = SharedLimit(4, 1 / 2)
"""Concurrent URL checks: slow DNS lookups must not occupy all threads of the API."""


def check_url(settings: BackgroundSettings, principal: Principal, url: str) -> None:
    """Raise InvalidRequestError for a URL that may not be a target of deliveries. Blocks.

    Raises RateLimitedError or UnavailableError while too many URLs are being checked.
    """
    full = looking_up.take(principal.sharer)
    if full is not None:
        text = "too many URLs of this tenant" if full == "owner" else "too many URLs"
        error = RateLimitedError if full == "owner" else UnavailableError
        raise error(f"{text} are being checked; retry in 1 s", headers={"Retry-After": "1"})
    try:
        guard_of(settings).check(url)
    except UnsafeUrlError as error:
        raise InvalidRequestError(f"url: {error}", param="url") from None
    finally:
        looking_up.release(principal.sharer)
