"""One attempt of a delivery: a signed POST to checked addresses.

Each attempt opens a connection to the addresses of its
:class:`~fairserve.platform.background.webhooks.guard.Target` only; TLS and the Host header use the host
name. Redirects are not followed, proxies of the environment are not used, and only the beginning of the
response is read and stored.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from datetime import datetime

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from fairserve.platform.background.webhooks.claims import Claimed, DeliveryOutcome
from fairserve.platform.background.webhooks.guard import Target, UnsafeUrlError
from fairserve.platform.background.webhooks.name_lookups import NameLookups
from fairserve.platform.background.webhooks.retries import retry_after_s
from fairserve.platform.background.webhooks.signature import headers
from fairserve.platform.db.webhooks import ERROR_CHARS

MAX_ANSWER_BYTES = 64 * 1024
BODY_S = 1.0
UNSIGNED = (
    "not sent: its signing secret is derived from a secret key of the platform that is no longer set;"
    " rotate the signing secret"
)


async def send(
    claimed: Claimed, names: NameLookups, timeout_s: float, now: Callable[[], datetime]
) -> DeliveryOutcome:
    """Send one delivery; ``names`` checks its URL. Raises only CancelledError."""
    if not claimed.secrets:
        return DeliveryOutcome(None, UNSIGNED)
    try:
        async with asyncio.timeout(timeout_s):
            target = await names.check(claimed.tenant, claimed.url)
            return await _post(claimed, target, now)
    except UnsafeUrlError as error:
        return DeliveryOutcome(None, printable(f"not sent: {error}"))
    except TimeoutError:
        return DeliveryOutcome(None, f"no response within {timeout_s:g} s")
    except Exception as error:
        # No response of a receiver may affect other deliveries.
        return DeliveryOutcome(None, printable(f"{type(error).__name__}: {error}"))


async def _post(claimed: Claimed, target: Target, now: Callable[[], datetime]) -> DeliveryOutcome:
    sent_at = now()
    signed = headers(claimed.secrets, claimed.event_id, claimed.body, sent_at)
    connector = aiohttp.TCPConnector(
        resolver=_Checked(target), use_dns_cache=False, force_close=True, limit=1
    )
    async with (
        aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session,
        session.post(
            target.url,
            data=claimed.body,
            headers={"content-type": "application/json", "user-agent": "FairServe", **signed},
            allow_redirects=False,
        ) as answer,
    ):
        if 200 <= answer.status < 300:
            return DeliveryOutcome(answer.status)
        asked_s = retry_after_s(answer.headers.get("retry-after"), sent_at)
        text = printable(f"{answer.status}: {await _beginning(answer)}")
        return DeliveryOutcome(answer.status, text, asked_s)


async def _beginning(answer: aiohttp.ClientResponse) -> str:
    """Return the part of the body that arrived with the headers, without waiting for more."""
    try:
        async with asyncio.timeout(BODY_S):
            return (await answer.content.read(MAX_ANSWER_BYTES)).decode("utf-8", "replace")
    except (TimeoutError, aiohttp.ClientError):
        return ""


def printable(text: str) -> str:
    """Return a text for storage: short, on one line, without control characters."""
    words = " ".join(text[: 4 * ERROR_CHARS].split())
    return "".join(char if char.isprintable() else "?" for char in words)[:ERROR_CHARS]


class _Checked(AbstractResolver):
    """Resolver that returns the checked addresses without a lookup."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the checked addresses. Raises OSError for any other host."""
        if host.rstrip(".").lower() != self._target.host.rstrip(".").lower():
            raise OSError(f"{host} was not checked")
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._target.addresses
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
