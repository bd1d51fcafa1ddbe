"""Clients of the Redis that servers share: of one server, or of those that sentinels watch.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB][?OPTIONS]
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/SERVICE[/DB][?OPTIONS]

``rediss`` instead of ``redis`` means TLS, also to the sentinels. OPTIONS are arguments of redis-py's
connections, such as ``ssl_ca_certs``; with the prefix ``sentinel_`` they are of those to the sentinels.

Nothing is repeated by the client: whether a command that failed was executed decides what is done next.
A server that sentinels name is used only if it is a primary: for a while after a failover some of them
name the former one. That costs a round trip of each connection.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError, ResponseError

LOST = (RedisError, OSError)
"""Errors of a command, which may have been executed or not."""
ANSWER_S = 2.0
CONNECTIONS = 8
"""Commands at a time; more wait."""
SENTINEL_PORT = 26379
FORMS = (
    "redis://USER:PASSWORD@HOST:PORT/DB, or redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB;"
    " with rediss for TLS, and with percent codes in user and password"
)
_WATCHED = re.compile(r"(rediss?)\+sentinel://([^/?]*@)?([^/?@]+)/([^/?]+)(.*)")
_OF_NOW = re.compile(r"(?:^|-)(?:UNBLOCKED|NOREPLICAS|MISCONF|READONLY|OOM) ")
"""Replies of a server that accepts no writes now: demoted, without replicas, or with a full disk.

Redis 6.2 has the code of a command in a script inside the text of the script's error.
"""


def redis_client(
    url: str,
    *,
    answer_s: float = ANSWER_S,
    connect_s: float = ANSWER_S,
    single: bool = False,
) -> Any:
    """Return a client with a few connections, which connects at the first command.

    A ``single`` one keeps one connection, and fails whenever it is lost. Raises ValueError that names
    ``redis_url``.
    """
    server = RedisServer.of(url)
    options: dict[str, Any] = {
        "max_connections": CONNECTIONS,
        "timeout": answer_s,
        "socket_timeout": answer_s,
        "socket_connect_timeout": connect_s,
        "retry": Retry(NoBackoff(), 0),
    } | server.options
    kind = options.get("connection_class", Connection)
    if server.sentinels:
        options |= {"connection_class": type("Watched", (_Watched, kind), {}), "server": server}
    else:
        options |= {"connection_class": type("Direct", (_Direct, kind), {})}
    pool = BlockingConnectionPool(**options)
    client = Redis(connection_pool=pool, single_connection_client=single)
    client.auto_close_connection_pool = True
    return client


@dataclass(frozen=True, slots=True)
class RedisServer:
    """The parts of a ``redis_url``."""

    options: dict[str, Any]
    """Arguments of a connection: address, user, database, TLS."""
    sentinels: tuple[tuple[str, int], ...] = ()
    """Host and port of each sentinel; empty if the URL names the server itself."""
    service: str = ""
    """Name under which the sentinels know the servers."""
    sentinel_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of a client of a sentinel, beside its address."""

    @classmethod
    def of(cls, url: str) -> RedisServer:
        """Return the parts. Raises ValueError that names the setting, and never its password."""
        watched = _WATCHED.fullmatch(url)
        try:
            if watched is None:
                return cls(dict(parse_url(url)))
            scheme, user, hosts, service, rest = watched.groups()
            sentinels = tuple(map(_address, hosts.split(",")))
            options: dict[str, Any] = dict(parse_url(f"{scheme}://{user or ''}{service}{rest}"))
        except ValueError:
            raise ValueError(f"redis_url must have the form {FORMS}") from None
        del options["host"]
        own = {
            name.removeprefix("sentinel_"): options.pop(name)
            for name in list(options)
            if name.startswith("sentinel_")
        }
        found = cls(options, sentinels, service, own)
        own |= {"ssl": found.tls} | found.tls_options
        return found

    @property
    def tls(self) -> bool:
        """True if connections are encrypted."""
        return self.options.get("connection_class") is SSLConnection

    @property
    def tls_options(self) -> dict[str, Any]:
        """Return the options of TLS, such as ``ssl_ca_certs``."""
        return {name: value for name, value in self.options.items() if name.startswith("ssl_")}


def accepts_no_writes(error: ResponseError) -> bool:
    """Return whether a server that replies with this error would accept the command at another time."""
    return isinstance(error, ReadOnlyError) or _OF_NOW.search(str(error)) is not None


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or SENTINEL_PORT


class _Direct:
    """A connection for which a server that accepts no writes now is like one that does not answer."""

    async def read_response(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if not accepts_no_writes(error):
                raise
            await self.disconnect()  # another server may have the address by now
            raise ConnectionError(str(error)) from error


class _Watched(_Direct):
    """A connection to the server that the sentinels name."""

    def __init__(self: Any, *, server: RedisServer, **options: Any) -> None:
        super().__init__(**options)
        self._server = server

    async def _connect(self: Any) -> None:
        self.host, self.port = await self._primary()
        await super()._connect()  # type: ignore[misc]

    async def on_connect_check_health(self: Any, check_health: bool = True) -> None:
        try:
            async with asyncio.timeout(self.socket_connect_timeout):
                await super().on_connect_check_health(check_health=check_health)  # type: ignore[misc]
                await self.send_command("ROLE", check_health=False)
                role, *_ = await self.read_response()
        except TimeoutError as error:  # its kernel has accepted the connection
            raise ConnectionError(f"{self.host}:{self.port} does not answer") from error
        if role not in (b"master", "master"):
            raise ConnectionError(f"{self.host}:{self.port} is no primary any more")

    async def _primary(self: Any) -> tuple[str, int]:
        """Return the address of the primary, as the first sentinel that answers knows it."""
        server, problem = self._server, "they do not know it"
        for host, port in server.sentinels:
            sentinel: Any = Redis(
                host=host,
                port=port,
                decode_responses=True,
                retry=self.retry,
                socket_timeout=self.socket_timeout,
                socket_connect_timeout=self.socket_connect_timeout,
                **server.sentinel_options,
            )
            try:
                async with sentinel:
                    found = await sentinel.sentinel_get_master_addr_by_name(server.service)
            except LOST as error:
                problem = f"{host}:{port}: {error}"
            else:
                if found:
                    name, number = found
                    return name, number
        raise ConnectionError(f"no sentinel names the primary of {server.service}: {problem}")
