"""Connections to the Redis that servers share, for commands that requests wait for.

Nothing is repeated by the client: whether a command that failed was executed decides what is done next.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

LOST = (RedisError, OSError)
"""Errors of a command, which may have been executed or not."""
ANSWER_S = 2.0
CONNECTIONS = 8
"""Commands at a time; more wait."""


def redis_client(url: str) -> Any:
    """Return a client with a few connections, which connects at the first command."""
    return Redis.from_pool(
        BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
        )
    )
