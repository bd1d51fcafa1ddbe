"""Celery's connections to Redis, for which a server that accepts no writes now is like one that is away.

A primary that was demoted, that has too few replicas or whose disk is full rejects each write. Celery
takes the reply for a mistake of the program, and its worker ends; after a failover all of them would.
Here the connection is lost, and Celery connects again until a server accepts writes.

The transports replace those of the schemes in the registry of the library: with each lost connection it
takes the transport that the scheme of its next URL names, whatever the settings name.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import ConnectionError, ResponseError

from fairserve.platform.base.redis_client import accepts_no_writes


class _Connection:
    """A connection that is lost with a reply that no writes are accepted."""

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if not accepts_no_writes(error):
                raise
            self.disconnect()
            raise ConnectionError(str(error)) from error


class _Channel:
    """A channel that fails as a lost connection where the library's fails with an AttributeError.

    It is closed with messages that are not acknowledged after its connection is gone, and connects again
    to put them back. They are not needed: jobs find their work in the database.
    """

    def _connparams(self: Any, *args: Any, **options: Any) -> Any:
        if self.connection.client is None:
            raise ConnectionError("the connection of the channel is gone")
        return super()._connparams(*args, **options)  # type: ignore[misc]


def _transport(base: Any) -> Any:
    """Return a transport of Celery whose channels and connections are of the classes above."""
    classes = {
        name: type("Connection", (_Connection, getattr(base.Channel, name)), {})
        for name in ("connection_class", "connection_class_ssl")
    }
    channel = type("Channel", (_Channel, base.Channel), classes)
    return type("Transport", (base,), {"Channel": channel})


Direct = _transport(redis.Transport)
"""Transport of one server."""
Watched = _transport(redis.SentinelTransport)
"""Transport of the servers that sentinels watch."""


def register() -> None:
    """Have Celery use these transports for the schemes of Redis."""
    direct = f"{__name__}:Direct"
    TRANSPORT_ALIASES.update(redis=direct, rediss=direct, sentinel=f"{__name__}:Watched")
