"""The log of a cell in Redis: one stream an epoch, the state at its beginning, and the speaker's lease.

    <prefix>:base             epoch, and what all processes must agree on
    <prefix>:snapshot:<epoch> a state of the cell and the entry after which it is
    <prefix>:log:<epoch>      the stream of entries
    <prefix>:cut              the entry of the stored state, where the log is cut by the next one
    <prefix>:speaker          token of the speaker, with an expiry
    <prefix>:successor        a newer version that waits to take the cell over, with an expiry
    <prefix>:noted            a time of the cell that the database had before

All keys are in one hash slot. An epoch ends when the server has lost entries that were read: a crash
with the append-only file synced every second, or a failover, loses some. Nothing is repeated silently:
the client's own retries are off, so that each connection that is lost is seen.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Literal, NamedTuple

import msgspec
import orjson
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,
)

from fairserve.platform.base.redis_client import redis_client
from fairserve.platform.control.log.shared_cell import EntryId

LOST = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
    OSError,
)
"""Errors after which the server may answer again."""
ELECTION_S = 0.75
"""Seconds in which processes with a state compare how far they have read."""
CONNECT_S = 1.0
"""Longest attempt to connect: sentinels may name a server that hangs for a while."""
CANCELLED_S = 0.1
"""Seconds after which a task that has not ended is cancelled again."""
Where = Literal["there", "trimmed", "lost"]
Appended = Literal["written", "closed", "lost"]
"""A log is closed when a newer version takes the cell over, and when another epoch has begun."""
ENTRIES_AT_ONCE = 200
"""Entries that are read and applied before other work of the event loop: a few tens of ms."""
_SAY = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local there = redis.call('EXISTS', KEYS[2])
if there == 1 then redis.call('XADD', KEYS[2], '*', 't', ARGV[3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return there
"""
"""A server without memory rejects a script only at its first write: the tick is first."""
_APPEND = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 'closed' end
return redis.call('XADD', KEYS[1], 'NOMKSTREAM', '*', 'b', ARGV[1]) and 'written' or 'lost'
"""
_ANSWER = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', 'a', ARGV[2])
return 1
"""
_SEAL = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', 's', '')
redis.call('SET', KEYS[3], '', 'EX', 3600)
return 1
"""
_STORE = """
local function later(one, other)
  local ms, number = string.match(one, '(%d+)-(%d+)')
  local ms_before, number_before = string.match(other, '(%d+)-(%d+)')
  if ms ~= ms_before then return tonumber(ms) > tonumber(ms_before) end
  return tonumber(number) > tonumber(number_before)
end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local cut = redis.call('GET', KEYS[3])
if cut and not later(ARGV[2], cut) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], ARGV[2])
local function ms(entry) return tonumber(string.match(entry, '(%d+)-')) end
local kept = math.max(0, ms(ARGV[2]) - tonumber(ARGV[3]))
if cut then
  if ms(cut) > kept then cut = string.format('%.0f', kept) end
  redis.call('XTRIM', KEYS[1], 'MINID', cut)
end
return 1
"""
_BEGIN = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local present = redis.call('GET', KEYS[2])
local former = present and cjson.decode(present).epoch or 0
if former > tonumber(ARGV[7]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local ended = {[ARGV[7]] = true, [string.format('%.0f', former)] = true}
for epoch, _ in pairs(ended) do
  local function of(key) return (string.gsub(key, '%d+$', epoch)) end
  local log, snapshot = of(KEYS[3]), of(KEYS[4])
  redis.call('SET', of(KEYS[6]), '', 'EX', 60)
  if redis.call('EXISTS', log) == 1 then redis.call('XADD', log, '*', 'e', ARGV[3]) end
  redis.call('EXPIRE', log, 60)
  redis.call('DEL', snapshot)
end
redis.call('DEL', KEYS[3], KEYS[6])
redis.call('XADD', KEYS[3], ARGV[4], 'e', ARGV[3])
redis.call('SET', KEYS[4], ARGV[5])
redis.call('SET', KEYS[2], ARGV[6])
redis.call('SET', KEYS[5], ARGV[4])
return 1
"""
"""The epoch before may be another than that in Redis, which may have lost it with its last entries."""
_LEAVE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class PresentEpoch(msgspec.Struct, frozen=True):
    """The present epoch, with the values that all processes of a cell have in common."""

    epoch: int
    version: int
    """Version of the cell (:data:`~fairserve.platform.control.log.shared_cell.CELL_VERSION`)."""
    agreement: dict[str, Any]
    """Options of all processes: with others they would decide otherwise."""


class LogEntry(NamedTuple):
    """One entry of the stream."""

    entry: EntryId
    kind: str
    """``b``: a batch; ``t``: a tick; ``a``: answers; ``s``: nothing counts after it; ``e``: an epoch
    begins."""
    data: bytes


class RedisLog:
    """Commands on the log of one cell. Raises ``LOST`` errors where the server does not answer."""

    def __init__(self, url: str, prefix: str) -> None:
        """``prefix`` begins all keys; it contains a hash tag."""
        self._prefix = prefix
        self._commands, self._reading = (
            redis_client(url, connect_s=CONNECT_S, single=True) for _ in range(2)
        )

    def _key(self, name: str, epoch: int | None = None) -> str:
        return f"{self._prefix}:{name}" if epoch is None else f"{self._prefix}:{name}:{epoch}"

    async def close(self) -> None:
        """Close the connections."""
        await self._commands.aclose()
        await self._reading.aclose()

    # --- the log ----------------------------------------------------------------------------------

    async def base(self) -> PresentEpoch | None:
        """Return the present epoch; None if this cell has none yet, or the server lost it.

        What is read from now on is of the server that has the address now: the former one of a failover
        answers on for a while.
        """
        await self._reading.connection_pool.disconnect()
        data = await self._reading.get(self._key("base"))
        return None if data is None else msgspec.json.decode(data, type=PresentEpoch)

    async def append(self, epoch: int, data: bytes) -> Appended:
        """Append a batch, unless nothing counts after the present end of the log."""
        keys = self._key("log", epoch), self._key("closed", epoch)
        found: Appended = (await self._commands.eval(_APPEND, 2, *keys, data)).decode()
        return found

    async def read(self, epoch: int, after: EntryId, block_ms: int) -> list[LogEntry]:
        """Return the entries after one; waits for the first for up to ``block_ms``."""
        key = self._key("log", epoch)
        found = await self._reading.xread({key: str(after)}, count=ENTRIES_AT_ONCE, block=block_ms)
        entries = found[0][1] if found else ()
        return [
            LogEntry(EntryId.of(entry), kind.decode(), data)
            for entry, fields in entries
            for kind, data in fields.items()
        ]

    async def where(self, epoch: int, entry: EntryId) -> Where:
        """Return whether the log has an entry, dropped it as an old one, or lost it."""
        key = self._key("log", epoch)
        if await self._reading.xrange(key, min=str(entry), max=str(entry)):
            return "there"
        first = await self._reading.xrange(key, count=1)
        return "trimmed" if first and EntryId.of(first[0][0]) > entry else "lost"

    async def end(self, epoch: int) -> None:
        """Drop the log of an epoch that has lost entries: no process continues with it."""
        await self._commands.delete(self._key("log", epoch))

    async def snapshot(self, epoch: int) -> dict[str, Any] | None:
        """Return the stored state of an epoch."""
        data = await self._reading.get(self._key("snapshot", epoch))
        return None if data is None else orjson.loads(zlib.decompress(data))

    # --- the speaker ------------------------------------------------------------------------------

    async def take_lease(self, token: str, lease_ms: int) -> bool:
        """Become the speaker if there is none; return whether this process is."""
        key = self._key("speaker")
        if await self._commands.set(key, token, nx=True, px=lease_ms):
            return True
        return bool(await self._commands.get(key) == token.encode())

    async def has_speaker(self, besides: str = "") -> bool:
        """Return whether a process has the lease, besides the one with this token."""
        return await self._commands.get(self._key("speaker")) not in (None, besides.encode())

    async def announce(self, version: int, expiry_ms: int) -> None:
        """Ask the speaker to let a newer version take the cell over."""
        await self._commands.set(self._key("successor"), version, px=expiry_ms)

    async def has_successor(self, version: int) -> bool:
        """Return whether a version newer than this one waits to take the cell over."""
        return int(await self._commands.get(self._key("successor")) or 0) > version

    async def answer(self, token: str, epoch: int, data: bytes) -> bool:
        """Append answers of the speaker; return false if another process has the lease."""
        keys = self._key("speaker"), self._key("log", epoch)
        return bool(await self._commands.eval(_ANSWER, 2, *keys, token, data) == 1)

    async def seal(self, token: str, epoch: int) -> None:
        """Let nothing count after this moment, unless another process has the lease."""
        keys = self._key("speaker"), self._key("log", epoch), self._key("closed", epoch)
        await self._commands.eval(_SEAL, len(keys), *keys, token)

    async def leave(self, token: str) -> None:
        """Let another process become the speaker at once."""
        await self._commands.eval(_LEAVE, 1, self._key("speaker"), token)

    async def say(self, token: str, lease_ms: int, epoch: int, tick: bytes) -> bool:
        """Append a tick and renew the lease; return false if another process has it."""
        keys = self._key("speaker"), self._key("log", epoch)
        said = await self._commands.eval(_SAY, 2, *keys, token, str(lease_ms), tick)
        return bool(said == 1)

    async def begin(
        self,
        token: str,
        lease_ms: int,
        base: PresentEpoch,
        first: EntryId,
        state: bytes,
        before: int,
    ) -> bool:
        """Begin an epoch after ``before``, with a state and the entry after which it is.

        Return false without the lease, or if another process has begun an epoch after that one.
        """
        keys = (
            self._key("speaker"),
            self._key("base"),
            self._key("log", base.epoch),
            self._key("snapshot", base.epoch),
            self._key("cut"),
            self._key("closed", base.epoch),
        )
        values = (
            token,
            str(lease_ms),
            str(base.epoch),
            str(first),
            state,
            msgspec.json.encode(base),
            str(before),
        )
        begun = await self._commands.eval(_BEGIN, len(keys), *keys, *values)
        return bool(begun == 1)

    async def ahead(self, process: str, last: EntryId) -> EntryId | None:
        """Note how far this process has read; return how far the furthest has.

        Return None if the notes are gone: they expire, and a server may lose them.
        """
        key = self._key("ahead")
        await self._commands.hset(key, process, str(last))
        await self._commands.pexpire(key, 5_000)
        await asyncio.sleep(ELECTION_S)
        found = await self._commands.hgetall(key)
        if process.encode() not in found:
            return None
        return max(map(EntryId.of, found.values()))

    async def store_snapshot(
        self, epoch: int, state: bytes, last: EntryId, *, kept_s: float
    ) -> bool:
        """Replace the state of the epoch by a later one, and drop the entries before the former one.

        A process that has just read the former one can follow from there until the next one is stored.
        Entries of the last ``kept_s`` before this one are kept, because processes may store theirs at
        once. Return false if this one is not later, or the epoch is over.
        """
        keys = self._key("log", epoch), self._key("snapshot", epoch), self._key("cut")
        kept_ms = int(kept_s * 1000)
        stored = await self._commands.eval(_STORE, len(keys), *keys, state, str(last), kept_ms)
        return bool(stored == 1)

    async def stored(self) -> EntryId | None:
        """Return the entry after which the stored state is."""
        found = await self._commands.get(self._key("cut"))
        return None if found is None else EntryId.of(found)

    async def note(self, at_ms: int) -> None:
        """Note a time of the cell that the database has."""
        await self._commands.set(self._key("noted"), at_ms)

    async def noted(self) -> int | None:
        """Return the time that was noted last; None if Redis has none."""
        found = await self._commands.get(self._key("noted"))
        return None if found is None else int(found)

    async def now_ms(self) -> int:
        """Return the server's time."""
        seconds, micros = await self._commands.time()
        return int(seconds) * 1000 + int(micros) // 1000


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks that use a log, and wait until they have ended.

    ``asyncio.wait_for``, with which the client sends, loses a cancellation before Python 3.12.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCELLED_S)


def state_bytes(state: dict[str, Any]) -> bytes:
    """Return a state as it is stored."""
    return zlib.compress(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS), 1)
