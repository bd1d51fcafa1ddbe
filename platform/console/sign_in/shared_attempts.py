"""Attempts of the last minutes in Redis, so that all servers that share it have one limit.

    <prefix>:attempts:<name>  attempts by their time

A name is a keyed hash. An attempt is counted before it is made, and removed if it is not to count, so
that attempts at several servers at a time do not pass the limit; one of a server that died counts as
failed. While Redis does not answer, nothing is rejected here: each server has its own limit besides.

Cost: one or two round trips of each sign-in.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from typing import Any

from fairserve.platform.base.redis_client import LOST

logger = logging.getLogger(__name__)

_BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
if redis.call('ZCARD', KEYS[1]) >= limit then
  local first = redis.call('ZRANGE', KEYS[1], -limit, -limit, 'WITHSCORES')
  return math.max(1, first[2] + window - now)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], window)
return 0
"""


class SharedAttempts:
    """Counts attempts by name. Belongs to one event loop."""

    def __init__(self, client: Any, prefix: str, secret: bytes) -> None:
        """``client`` is of :func:`~fairserve.platform.base.redis_client.redis_client`."""
        self._redis, self._prefix, self._secret = client, prefix, secret

    async def begin(self, name: str, limit: int, window_s: float) -> tuple[str, float]:
        """Count an attempt; return its token, and the seconds to wait if it is beyond the limit.

        An attempt beyond the limit is not counted.
        """
        token = secrets.token_hex(8)
        values = token, limit, round(window_s * 1000)
        try:
            wait_ms = await self._redis.eval(_BEGIN, 1, self._key(name), *values)
        except LOST as error:
            logger.warning("sign-ins at other servers are unknown: %s", type(error).__name__)
            return "", 0.0
        return token, wait_ms / 1000

    async def undo(self, name: str, token: str) -> None:
        """Remove an attempt that does not count."""
        if token:
            try:
                await self._redis.zrem(self._key(name), token)
            except LOST as error:
                logger.warning("a sign-in counts as failed: %s", type(error).__name__)

    def _key(self, name: str) -> str:
        digest = hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()[:40]
        return f"{self._prefix}:attempts:{digest}"
