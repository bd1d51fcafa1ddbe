"""Idempotent answers of all servers that share an order, in its Redis.

    <prefix>:answer:<name>   hash: fingerprint, owner, and head and body once the answer is complete
    <prefix>:answers:since   time from which claims are accepted; it expires if no server renews it
    <prefix>:answers:ends    names by their expiry, with tenant and size
    <prefix>:answers:of:<t>  those of a tenant
    <prefix>:answers:sizes   sum of sizes by tenant
    <prefix>:answers:used    sum of all

A name is a keyed hash of app and key, and a fingerprint one of the request, so that neither keys nor
prompts are stored; heads and bodies of answers are, as plain text. A server claims a name before its
call is submitted, and renews the claim until the answer is stored. The claim of a server that died
expires after ``CLAIM_S``: control has recorded the call as failed by then, so no call is made twice
silently. While Redis does not answer, no call with a key is made, and what ended is stored later.

After Redis lost its data, or nobody could renew anything for long, ``since`` is missing. Then no
claims are accepted for ``SETTLE_S``, in which each server stores its claims, and the answers that it
has in memory, again.

Cost of a call: three round trips, of which its client waits for two. Answers are bounded as those of
one process. Weakness: a failover, or a crash with the append-only file synced every second, loses the
claims of the last second until they are renewed, after ``RENEW_S``, and the answers of that second; and
an answer of a server that has gone is lost with the data of Redis. Keys of an eviction are not declared
to the scripts: they are in the hash slot of the prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.redis_client import ANSWER_S, LOST
from fairserve.platform.serving.completions.answer import AnswerBuffer
from fairserve.platform.serving.completions.idempotency import (
    MAX_BYTES,
    MAX_ENTRIES,
    RETENTION_S,
    AnswerClaim,
    Busy,
    IdempotentRequest,
    OwnAnswers,
    units,
)

logger = logging.getLogger(__name__)

CLAIM_S = 75.0
"""Seconds for which a claim is valid without a renewal: control ends a silent call after 60."""
RENEW_S = 2.0
SINCE_S = 60.0
"""Seconds after which ``since`` expires if nobody renews it: before claims do."""
SETTLE_S = 5.0
"""Seconds without claims after data were lost: a few renewals."""
INDEX_S = 60.0
"""Seconds by which what lists the answers outlives them."""
RETRY_S = "2"

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_RENEW_SINCE = (
    _NOW
    + """
local since = redis.call('GET', KEYS[1])
if not since then since = string.format('%.0f', now + ARGV[2]) end
redis.call('SET', KEYS[1], since, 'PX', ARGV[1])
return since
"""
)
_CLAIM = (
    _NOW
    + """
local found = redis.call('HMGET', KEYS[1], 'fingerprint', 'head', 'body')
if found[1] then return found end
local since = redis.call('GET', KEYS[2])
if not since or tonumber(since) > now then return 0 end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
)
_RENEW = """
if redis.call('HEXISTS', KEYS[1], 'body') == 1 then return 0 end
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_RELEASE = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_KEEP = (
    _NOW
    + """
local prefix, fingerprint, head, body = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local name, tenant, size = ARGV[5], ARGV[6], tonumber(ARGV[7])
local most, lives, index = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local key, ends, sizes, used = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function drop(member)
  local owner, weight, which = string.match(member, '^(.*)|(%d+)|(.*)$')
  redis.call('ZREM', ends, member)
  redis.call('ZREM', prefix .. ':answers:of:' .. owner, member)
  if tonumber(redis.call('ZINCRBY', sizes, -weight, owner)) <= 0 then
    redis.call('ZREM', sizes, owner)
  end
  redis.call('DECRBY', used, weight)
  return prefix .. ':answer:' .. which
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 256)) do
  drop(member)
end
if redis.call('HEXISTS', key, 'body') == 1 then return 0 end
redis.call('DEL', key)
if size > most then return 0 end
redis.call('HSET', key, 'fingerprint', fingerprint, 'head', head, 'body', body)
redis.call('PEXPIRE', key, lives)
local member = tenant .. '|' .. size .. '|' .. name
local own = prefix .. ':answers:of:' .. tenant
if redis.call('ZSCORE', ends, member) then drop(member) end
redis.call('ZADD', ends, now + lives, member)
redis.call('ZADD', own, now + lives, member)
redis.call('ZINCRBY', sizes, size, tenant)
redis.call('INCRBY', used, size)
while tonumber(redis.call('GET', used)) > most do
  local first = redis.call('ZREVRANGE', sizes, 0, 0, 'WITHSCORES')
  local loser = first[1]
  if tonumber(redis.call('ZSCORE', sizes, tenant)) >= tonumber(first[2]) then loser = tenant end
  local oldest = redis.call('ZRANGE', prefix .. ':answers:of:' .. loser, 0, 0)
  if not oldest[1] then oldest = redis.call('ZRANGE', ends, 0, 0) end
  redis.call('DEL', drop(oldest[1]))
end
for _, each in ipairs({ends, own, sizes, used}) do
  redis.call('PEXPIRE', each, index)
end
return 1
"""
)


@dataclass(slots=True)
class _Held:
    """A claim in Redis that is to be renewed, or ended."""

    claim: AnswerClaim
    renewed_s: float
    ended: bool = False

    @property
    def answer(self) -> AnswerBuffer | None:
        """Return the answer that is to be stored."""
        return self.claim.answer if self.ended else None


class RedisAnswers:
    """The store of several servers; see :mod:`fairserve.platform.serving.completions.idempotency`."""

    def __init__(
        self,
        client: Any,
        prefix: str,
        secret: bytes,
        *,
        retention_s: float = RETENTION_S,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        settle_s: float = SETTLE_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client`` is of :mod:`fairserve.platform.base.redis_client`, and not closed here.

        ``prefix`` begins all keys; it contains a hash tag. ``secret`` keys the hashes of names.
        """
        self._prefix, self._secret = prefix, secret
        self._redis = client
        self._own = OwnAnswers(
            retention_s=retention_s, max_entries=max_entries, max_bytes=max_bytes, clock=clock
        )
        """Answers of this server: they need no Redis here, and are stored again if it loses them."""
        self._retention_s, self._max_entries = retention_s, max_entries
        self._unit_bytes = max_bytes / max_entries
        self._settle_s, self._renew_s, self._clock = settle_s, renew_s, clock
        self._held: dict[str, _Held] = {}
        """Claims by owner: those of running calls, and those that have ended and are not written."""
        self._since = b""
        self._wake = asyncio.Event()
        self._answers = True
        """False while Redis does not answer the task."""
        self._closes = False
        self._task: asyncio.Task[None] | None = None

    # --- the store --------------------------------------------------------------------------------

    async def find(self, request: IdempotentRequest) -> AnswerBuffer | Busy | None:
        """See the protocol."""
        own = await self._own.find(request)
        if own is not None:
            return own
        try:
            found = await self._redis.hmget(self._key(request), "fingerprint", "head", "body")
        except LOST as error:
            raise _unavailable() from error
        return None if found[0] is None else self._read(request, found)

    async def claim(self, request: IdempotentRequest) -> AnswerBuffer | Busy | AnswerClaim:
        """See the protocol."""
        own = await self._own.find(request)
        if own is not None:
            return own
        claim = AnswerClaim(request, secrets.token_hex(8))
        keys = self._key(request), self._name("answers:since")
        values = self._fingerprint(request), claim.owner, _ms(CLAIM_S)
        try:
            got = await self._redis.eval(_CLAIM, len(keys), *keys, *values)
        except BaseException as error:  # it may have been executed
            self._held[claim.owner] = _Held(claim, self._clock())
            self._end(claim)
            if isinstance(error, LOST):
                raise _unavailable() from error
            raise
        if got == 1:
            self._held[claim.owner] = _Held(claim, self._clock())
            return claim
        if got == 0:
            raise _unavailable()
        return self._read(request, got)

    def end(self, claim: AnswerClaim) -> None:
        """See the protocol."""
        self._own.end(claim)
        self._end(claim)

    def start(self) -> None:
        """See the protocol."""
        self._task = asyncio.create_task(self._run(), name="idempotent answers")

    async def close(self) -> None:
        """See the protocol. Claims of calls that have not ended are released."""
        self._closes = True
        self._wake.set()
        if self._task is not None:
            await self._task
        for held in self._held.values():
            held.ended = True
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._write()
        except (TimeoutError, *LOST) as error:
            logger.warning("idempotent answers are not stored: %s", type(error).__name__)

    # --- writing ----------------------------------------------------------------------------------

    def _end(self, claim: AnswerClaim) -> None:
        self._held[claim.owner].ended = True
        self._wake.set()

    async def _run(self) -> None:
        # It is not cancelled: a cancelled command would leave its connection with an answer to come.
        while not self._closes:
            try:
                await self._write()
                self._answers = True
            except LOST as error:
                if self._answers:
                    logger.warning("idempotent answers are not stored: %s", type(error).__name__)
                self._answers = False
                self._forget_released()
            except Exception:
                logger.exception("idempotent answers are not stored")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew_s):
                    await self._wake.wait()
            self._wake.clear()

    def _forget_released(self) -> None:
        """Forget the claims of calls that failed: without Redis they expire."""
        for owner, held in list(self._held.items()):
            if held.ended and held.answer is None:
                del self._held[owner]

    async def _write(self) -> None:
        """Renew and end claims. Raises ``LOST`` errors; what is not written then remains."""
        await self._renew_since()
        now_s = self._clock()
        before_s = now_s - self._renew_s
        due = [held for held in self._held.values() if held.ended or held.renewed_s <= before_s]
        short = [(held, held.ended) for held in due if held.answer is None]
        if short:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for held, ended in short:
                    self._renew_or_release(pipeline, held.claim, ended=ended)
                results = await pipeline.execute()
            for (held, ended), renewed in zip(short, results, strict=True):
                held.renewed_s = now_s
                if ended:
                    del self._held[held.claim.owner]
                elif not renewed:
                    logger.error("another server makes a call with the same Idempotency-Key")
        for held in due:
            if (answer := held.answer) is not None:
                await self._keep(held.claim.request, answer, self._retention_s)
                del self._held[held.claim.owner]

    def _renew_or_release(self, pipeline: Any, claim: AnswerClaim, *, ended: bool) -> None:
        key = self._key(claim.request)
        if ended:
            pipeline.eval(_RELEASE, 1, key, claim.owner)
        else:
            fingerprint = self._fingerprint(claim.request)
            pipeline.eval(_RENEW, 1, key, fingerprint, claim.owner, _ms(CLAIM_S))

    async def _renew_since(self) -> None:
        """Renew the time from which claims are accepted; store everything again if it is new."""
        key = self._name("answers:since")
        since = await self._redis.eval(_RENEW_SINCE, 1, key, _ms(SINCE_S), _ms(self._settle_s))
        if since == self._since:
            return
        for held in self._held.values():
            held.renewed_s = float("-inf")
        for request, answer, left_s in list(self._own.items()):
            await self._keep(request, answer, left_s)
        self._since = since

    async def _keep(self, request: IdempotentRequest, answer: AnswerBuffer, left_s: float) -> None:
        name = self._hash(request.app, request.key)
        keys = (
            self._key(request),
            self._name("answers:ends"),
            self._name("answers:sizes"),
            self._name("answers:used"),
        )
        values = (
            self._prefix,
            self._fingerprint(request),
            orjson.dumps([answer.status, answer.headers]),
            answer.body,
            name,
            request.tenant,
            units(answer.size_bytes, self._unit_bytes),
            self._max_entries,
            _ms(left_s),
            _ms(self._retention_s + INDEX_S),
        )
        await self._redis.eval(_KEEP, len(keys), *keys, *values)

    # --- names ------------------------------------------------------------------------------------

    def _read(self, request: IdempotentRequest, found: list[bytes | None]) -> AnswerBuffer | Busy:
        fingerprint, head, body = found
        assert fingerprint is not None, "it is written first"
        request.check(fingerprint.decode(), self._fingerprint(request))
        if head is None or body is None:
            return Busy.BUSY
        status, headers = orjson.loads(head)
        answer = AnswerBuffer()
        answer.start(status, headers)
        answer.write(body)
        answer.finish()
        return answer

    def _name(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _key(self, request: IdempotentRequest) -> str:
        return self._name(f"answer:{self._hash(request.app, request.key)}")

    def _fingerprint(self, request: IdempotentRequest) -> str:
        return self._hash("fingerprint", request.fingerprint)

    def _hash(self, *texts: str) -> str:
        return hmac.new(self._secret, "\n".join(texts).encode(), hashlib.sha256).hexdigest()[:40]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _unavailable() -> UnavailableError:
    return UnavailableError(
        "Redis does not answer, or has lost data a moment ago: it is unknown whether the call with this"
        " Idempotency-Key was made, so it is not made now; retry later",
        code="idempotency_unavailable",
        headers={"Retry-After": RETRY_S},
    )
