"""Origins of the pages in browsers that may call the platform with an app's key (CORS).

A preflight carries no key, so it is answered for the origins of all apps (:class:`Origins`); the
request itself only for those of its app, which are a part of its principal. ``*`` is not allowed: it
would let every page that gets hold of a key use it from its visitors' browsers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App, Tenant

logger = logging.getLogger(__name__)

MAX_ORIGINS = 16
"""Origins of one app."""
MAX_TENANT_ORIGINS = 1000
"""Origins of all apps of one tenant: every server keeps those of all tenants in memory."""
MAX_ORIGIN_CHARS = 200
TTL_S = 30.0
"""Seconds until a change made through another server is known here."""

_ORIGIN = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normal_origin(text: str) -> str:
    """Return an origin as browsers send it: lower case, without the scheme's own port.

    Raises ValueError for anything but ``http(s)://host[:port]``.
    """
    found = _ORIGIN.fullmatch(text.strip().lower())
    if found is None or len(text) > MAX_ORIGIN_CHARS or not _is_host(found[2]):
        raise ValueError(
            "must be an origin, http://host[:port] or https://host[:port], without a path; * is not"
            " allowed, and a name with other letters than a to z is written in punycode"
        )
    scheme, host, port = found[1], found[2], int(found[3] or 0)
    if found[3] is not None and not 1 <= port <= 65535:
        raise ValueError(f"has port {found[3]}; must be between 1 and 65535")
    return f"{scheme}://{host}" + ("" if port in (0, _DEFAULT_PORTS[scheme]) else f":{port}")


def _is_host(host: str) -> bool:
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    return all(_LABEL.fullmatch(label) for label in host.split("."))


def _distinct(origins: list[str]) -> list[str]:
    return list(dict.fromkeys(origins))


Origin = Annotated[
    str,
    AfterValidator(normal_origin),
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_ORIGIN_CHARS}),
]
CorsOrigins = Annotated[list[Origin], Field(max_length=MAX_ORIGINS), AfterValidator(_distinct)]
"""Origins of an app's pages; empty: no page of a browser may call."""


class Origins:
    """The origins of all apps that work, read at most once in ``TTL_S`` and after a change here.

    At most :data:`MAX_TENANT_ORIGINS` for each tenant. While the database does not answer, the last
    known ones hold. :meth:`allow` belongs to one event loop, :meth:`forget` to any thread.
    """

    def __init__(
        self, sessions: SessionFactory, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sessions = sessions
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._expires_s = float("-inf")
        self._generation = 0
        """Counts the changes, so that a read from before one is not kept."""
        self._reading: asyncio.Task[None] | None = None

    async def allow(self, origin: str) -> bool:
        """Return True if some app has this origin. Waits for the database if the cache is too old.

        Requests that arrive during a read wait for it together.
        """
        while self._monotonic_s() >= self._expires_s:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return origin in self._known

    def forget(self) -> None:
        """Read again before the next answer; call it after the commit of a change."""
        with self._lock:
            self._generation += 1
            self._expires_s = float("-inf")

    async def _read(self) -> None:
        generation, now_s = self._generation, self._monotonic_s()
        try:
            self._known = await asyncio.to_thread(self._of_all_apps)
        except SQLAlchemyError as error:
            logger.warning("the origins of apps cannot be read: %s", type(error).__name__)
            generation = self._generation  # the last known ones hold until the next attempt
        with self._lock:
            if generation == self._generation:
                self._expires_s = now_s + TTL_S

    def _of_all_apps(self) -> frozenset[str]:
        with self._sessions() as session:
            rows = read_only(session).scalars(
                select(App.cors_origins)
                .join(App.tenant)
                .where(
                    App.cors_origins.is_not(None),
                    App.deleted_at.is_(None),
                    App.suspended_at.is_(None),
                    Tenant.deleted_at.is_(None),
                    Tenant.suspended_at.is_(None),
                )
            )
            return frozenset(origin for origins in rows for origin in origins or ())
