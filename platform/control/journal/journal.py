"""The journal: an append-only file per segment, synced in groups by one thread.

The ``accepted`` entry of a call is on disk before the call is granted a worker, and the ledger writes
its row from the ``closed`` entry (:mod:`fairserve.platform.control.ledger`). So a crash of this process
or an outage of the database neither loses a row nor writes one twice. The thread writes and
syncs ``accepted`` entries; while it syncs, entries collect for its next write: one sync serves all calls
of that moment. Where it is not at work, the event loop writes the other entries of a turn at the turn's
end, which outlives this process; they are synced a little later or with the next ``accepted`` one.
Segments are deleted, oldest first, once they are in the ledger and no open call was accepted in them.

Cost of a call, four entries: about 50 us on the event loop, 20 us of them system calls, and one sync
that it may share, 0.1 ms of CPU.

Space is allocated ahead (:mod:`fairserve.platform.control.journal.reserve`): on a full disk new calls
are rejected, and the ends of accepted ones are written. Ends of runs wait in memory for space, and
progress and marks are dropped.

Weaknesses: a disk that fails, rather than being full, leaves the entries of running calls in memory
until it works again. Their number is bounded by the running calls, since new ones are rejected until
then. The event loop waits while the system delays a write to its page cache, as it does where memory is
full of data that a slow disk has not taken yet; it does not wait for a sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.platform.control.journal.entries import Kind, encode
from fairserve.platform.control.journal.recovery import OpenCall, recover
from fairserve.platform.control.journal.reserve import CALL_BYTES, Allocate, Reserve, allocate
from fairserve.platform.control.journal.retention import KeptSegments, Segment
from fairserve.platform.control.journal.segments import Position, create_segment, segment_path

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 64 * 1024 * 1024
RETRY_S = 0.5
LAZY_SYNC_S = 0.1
"""Longest time until an entry without a waiter is synced."""


class JournalUnavailableError(Exception):
    """The journal accepts no new calls. The message states whether its disk is full or fails."""


@dataclass(slots=True)
class _Pending:
    line: bytes
    kind: Kind
    key: str
    sequence: int = 0
    waiter: asyncio.Future[None] | None = None
    dropped: bool = False


@dataclass(slots=True)
class _Writing:
    """The segment that the writer appends to."""

    segment: Segment
    descriptor: int

    def close(self) -> None:
        """Free the space that was allocated ahead, and the descriptor."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, self.segment.size_bytes)
        os.close(self.descriptor)


class Journal:
    """One folder of segments. ``open`` and ``append`` belong to one thread: the event loop's."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 16 * 1024 * 1024,
        max_bytes: int = 1024 * 1024 * 1024,
        sync: Callable[[int], None] = os.fdatasync,
        allocate: Allocate = allocate,
        awaited: bool = True,
    ) -> None:
        """``awaited``: each ``accepted`` entry is awaited by :meth:`durable`.

        Not so where servers share an order, in which the entries are of the calls of all.
        """
        self.folder = folder
        self._awaited = awaited
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._sync = sync
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        """Notified of work for the thread, and of each sync."""
        self._reserve = Reserve(allocate)
        self._disk_full = ""
        """Error of the last allocation; empty if it succeeded."""
        self._disk_full_until_s = 0.0
        """Monotonic time of the next attempt to allocate."""
        self._waiting: deque[_Pending] = deque()
        """Entries without space, in their order."""
        self._pending: list[_Pending] = []
        """Entries with space that are not in the file yet."""
        self._in_cache: list[_Pending] = []
        """Entries in the file that are not synced."""
        self._in_cache_bytes = 0
        self._flushing: asyncio.AbstractEventLoop | None = None
        """The event loop that writes the pending entries at the end of its turn."""
        self._urgent = False
        """An ``accepted`` entry waits for a sync."""
        self._busy = True
        """The thread writes or syncs, or does not run: the event loop must not write."""
        self._asleep = False
        """The thread waits without a limit: who writes to the file wakes it, for the sync."""
        self._unsynced: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._sequence = 0
        self._in_file = 0
        """Number of the last entry that was written, or could not be written for now."""
        self._file_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._synced = 0
        """Number of the last entry that is on disk."""
        self._durable = Position(0, 0)
        self._kept = KeptSegments()
        self._failure: str | None = None
        self._stopping = False
        self._writing: _Writing | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[Callable[[], None]] = []

    # --- life -------------------------------------------------------------------------------------

    def open(self) -> list[OpenCall]:
        """Read the existing segments, cut a torn tail, start the writer; return the calls that are open.

        The caller closes those (``append("closed", ...)``). Raises OSError if the folder or its
        disk cannot be used.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            self.folder.chmod(0o700)
        self._kept, left_open = recover(self.folder)
        self._start_segment(self._kept.newest_number + 1, first=True)
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()
        return left_open

    def close(self) -> None:
        """Write and sync the pending entries and stop the writer. May be repeated."""
        with self._lock:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    # --- writing, from the event loop -------------------------------------------------------------

    def check(self) -> None:
        """Raise JournalUnavailableError if a new call could not be written."""
        with self._lock:
            if self._failure is not None:
                raise JournalUnavailableError(f"the journal cannot be written: {self._failure}")
            kept_bytes = self._kept.size_bytes + self._pending_bytes
            has_room = self._has_room(CALL_BYTES)
        if not has_room:
            raise JournalUnavailableError(f"the journal's disk is full: {self._disk_full}")
        if kept_bytes >= self._max_bytes:
            raise JournalUnavailableError(
                f"the journal has {kept_bytes} bytes that are not in the database yet; allowed: "
                f"{self._max_bytes}"
            )
        if self._pending_bytes >= MAX_PENDING_BYTES:
            raise JournalUnavailableError("the journal's disk is too slow")

    def append(self, kind: Kind, key: str, data: dict[str, Any]) -> int:
        """Queue an entry for the writer; return its number for :meth:`durable`.

        An ``accepted`` entry holds space for the end of its call, and is the only one that can be
        rejected (JournalUnavailableError). ``progress`` may be dropped, and so may a ``mark`` without
        space or behind entries that wait for it; the other kinds are kept until they are written.
        """
        if kind == "accepted":
            self.check()
        line = encode(kind, key, data)
        pending = _Pending(line, kind, key)
        with self._lock:
            if kind == "accepted":
                self._reserve.hold(key, len(line))
            elif kind == "closed" and self._reserve.release(key):
                pass  # written into the space that it held
            elif kind in ("progress", "mark") and (
                (kind == "mark" and self._waiting) or not self._has_room(len(line) + CALL_BYTES)
            ):
                return self._sequence
            elif self._waiting or not self._has_room(len(line)):
                self._waiting.append(pending)
                self._condition.notify_all()
                return self._sequence
            self._queue(pending)
            self._write_soon()
            return self._sequence

    def _write_soon(self) -> None:
        """Write the pending entries at the end of the event loop's turn. The caller holds the lock."""
        if self._busy:
            return  # the thread looks for pending entries before it waits
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the server starts or stops
            self._condition.notify_all()
            return
        if self._flushing is not loop:
            self._flushing = loop
            loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Write the pending entries, or leave them to the thread, which has to sync some of them."""
        with self._lock:
            self._flushing = None
            if self._urgent:
                self._condition.notify_all()
            else:
                self._flush()

    def _flush(self) -> None:
        """Write the pending entries unless the thread is at work. The caller holds the lock."""
        if self._busy or not self._pending:
            return
        with contextlib.suppress(OSError):  # the thread repeats it, and handles the error
            self._write(self._pending)
            self._passed(self._pending)
            self._pending = []
        if self._pending or self._asleep:
            self._condition.notify_all()

    def _queue(self, pending: _Pending) -> None:
        """Queue an entry whose space is allocated. The caller holds the lock."""
        self._sequence += 1
        pending.sequence = self._sequence
        self._pending.append(pending)
        if pending.kind == "accepted":
            if self._awaited:
                self._unsynced[self._sequence] = pending
            self._urgent = True
        self._pending_bytes += len(pending.line)

    def _has_room(self, need_bytes: int) -> bool:
        """Return true if the space is free or can be allocated. The caller holds the lock."""
        assert self._writing is not None
        used_bytes = self._writing.segment.size_bytes + self._pending_bytes
        if self._reserve.free_bytes(used_bytes) >= need_bytes:
            return True
        if self._disk_full and time.monotonic() < self._disk_full_until_s:
            return False
        try:
            self._reserve.grow(self._writing.descriptor, used_bytes, need_bytes)
        except OSError as error:
            self._lacks_room(error)
            return False
        self._disk_full = ""
        return True

    def _lacks_room(self, error: OSError) -> None:
        if not self._disk_full:
            logger.error("the journal's disk is full, new calls are rejected: %s", error)
        self._disk_full = error.strerror or str(error)
        self._disk_full_until_s = time.monotonic() + RETRY_S

    async def durable(self, sequence: int) -> None:
        """Wait until an ``accepted`` entry is on disk.

        Raises JournalUnavailableError if it could not be written; it is not written later.
        """
        with self._lock:
            pending = self._unsynced.get(sequence)
            if pending is None:
                return
            if pending.dropped:
                del self._unsynced[sequence]
                raise JournalUnavailableError(f"the journal cannot be written: {self._failure}")
            pending.waiter = asyncio.get_running_loop().create_future()
            waiter = pending.waiter
        await waiter

    async def written(self) -> None:
        """Wait until all entries so far outlive this process: in the file, not necessarily on disk.

        Also returns if they cannot be written now; they are kept and written later.
        """
        with self._lock:
            self._flush()
            if self._in_file >= self._sequence:
                return
            waiter = asyncio.get_running_loop().create_future()
            self._file_waiters.append((self._sequence, waiter))
        await waiter

    # --- reading, from the ledger's thread --------------------------------------------------------

    def sync(self, timeout_s: float) -> bool:
        """Wait until all entries so far are on disk; return whether they are. Blocks."""
        with self._lock:
            target = self._sequence
            self._urgent = True
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._synced >= target, timeout_s)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` in the writer's thread after every sync; it must not raise."""
        self._listeners.append(listener)

    @property
    def durable_position(self) -> Position:
        """Position before which every entry is on disk."""
        with self._lock:
            return self._durable

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of all kept segments, and of the entries that are not on disk yet."""
        with self._lock:
            return self._kept.size_bytes, self._pending_bytes

    def bytes_after(self, position: Position) -> int:
        """Return the bytes that are on disk from ``position`` on."""
        with self._lock:
            return self._kept.bytes_after(position)

    def ledgered(self, position: Position) -> None:
        """Delete segments that are no longer needed: all before ``position`` is in the database."""
        with self._lock:
            dropped = self._kept.drop_ledgered(position)
        for number in dropped:
            segment_path(self.folder, number).unlink(missing_ok=True)

    # --- the writer -------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._lock:
                due = self._wait()
                while self._waiting and self._has_room(len(self._waiting[0].line)):
                    self._queue(self._waiting.popleft())
                batch, self._pending = self._pending, []
                if self._stopping and not batch and not self._in_cache:
                    self._log_unwritten(len(self._waiting))
                    return
                due, self._urgent = due or self._urgent, False
            try:
                self._write(batch)
                with self._lock:
                    self._passed(batch)
                batch = []
                if due and self._in_cache:
                    assert self._writing is not None
                    self._sync(self._writing.descriptor)
                    self._written()
            except OSError as error:
                self._cut()
                if not self._fail(batch, error):
                    return

    def _wait(self) -> bool:
        """Wait for work; return whether a sync is due. The caller holds the lock."""
        self._busy = False
        due = False
        while not (self._pending or self._urgent or self._stopping or due):
            if self._condition.wait(self._pause_s()):
                self._asleep = False
            elif self._in_cache or self._waiting:
                due = True
            else:
                # A busy server does not get here: waking a thread costs as much as writing an entry.
                self._asleep = True
        self._busy, self._asleep = True, False
        return due or self._stopping

    def _pause_s(self) -> float | None:
        if self._asleep:
            return None
        return RETRY_S if self._waiting and not self._in_cache else LAZY_SYNC_S

    def _write(self, batch: Sequence[_Pending]) -> None:
        """Write entries to the file, behind those that are there. Raises OSError."""
        assert self._writing is not None
        offset = self._writing.segment.size_bytes + self._in_cache_bytes
        self._put(b"".join([pending.line for pending in batch]), offset)

    def _put(self, data: bytes, offset: int) -> None:
        assert self._writing is not None
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._writing.descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def _passed(self, batch: Sequence[_Pending]) -> None:
        """Note that entries are in the file, and wake :meth:`written`. The caller holds the lock."""
        self._in_cache += batch
        self._in_cache_bytes += sum([len(pending.line) for pending in batch])
        self._wake_written(batch)

    def _wake_written(self, batch: Sequence[_Pending]) -> None:
        """Wake the callers of :meth:`written`. The caller holds the lock."""
        if not batch:
            return
        self._in_file = max(self._in_file, batch[-1].sequence)
        if self._file_waiters:
            due = [waiter for sequence, waiter in self._file_waiters if sequence <= self._in_file]
            self._file_waiters = [each for each in self._file_waiters if each[0] > self._in_file]
            _wake(due, None)

    def _cut(self) -> None:
        """Overwrite what was written but not synced: it is written again in the same space.

        If that fails too, entries appear twice, which is harmless: the ledger upserts.
        """
        assert self._writing is not None
        with contextlib.suppress(OSError), self._lock:
            size_bytes = self._writing.segment.size_bytes
            self._put(bytes(self._pending_bytes), size_bytes)

    def _written(self) -> None:
        """Note that the entries in the file are synced, and wake those that wait for it."""
        assert self._writing is not None
        segment = self._writing.segment
        with self._lock:
            waiters = []
            batch, self._in_cache = self._in_cache, []
            self._kept.grow(segment, self._in_cache_bytes)
            self._pending_bytes -= self._in_cache_bytes
            self._in_cache_bytes = 0
            self._failure = None
            for pending in batch:
                self._kept.count(pending.kind, pending.key, segment)
                if pending.kind == "accepted":
                    self._unsynced.pop(pending.sequence, None)
                    waiters.append(pending.waiter)
            self._durable = Position(segment.number, segment.size_bytes)
            self._synced = max(self._synced, batch[-1].sequence)
            self._condition.notify_all()
        _wake([waiter for waiter in waiters if waiter is not None], None)
        for listener in self._listeners:
            listener()
        if segment.size_bytes >= self._segment_bytes:
            self._rotate()

    def _fail(self, batch: list[_Pending], error: OSError) -> bool:
        """Reject the new calls of a batch, keep the rest; return false if the writer must stop."""
        with self._lock:
            if self._failure is None:
                logger.error("the journal cannot be written: %s", error)
            self._failure = error.strerror or str(error)
            self._wake_written(batch)
            batch = [*self._in_cache, *batch, *self._pending]
            self._in_cache, self._in_cache_bytes = [], 0
            waiters = []
            for pending in batch:
                if pending.kind == "accepted":
                    pending.dropped = True
                    self._reserve.release(pending.key)
                    self._pending_bytes -= len(pending.line)
                    if pending.waiter is not None:
                        waiters.append(pending.waiter)
                        del self._unsynced[pending.sequence]
            self._pending = [pending for pending in batch if pending.kind != "accepted"]
            reason = f"the journal cannot be written: {self._failure}"
        _wake(waiters, reason)
        with self._lock:
            if self._stopping:
                self._log_unwritten(len(self._pending) + len(self._waiting))
                return False
            self._condition.wait_for(lambda: self._stopping, timeout=RETRY_S)
            if not self._pending:
                # No entry is left that would show whether the disk works: admit a call to find out.
                self._failure = None
        return True

    def _log_unwritten(self, entries: int) -> None:
        if entries:
            logger.error("%d journal entries could not be written", entries)

    def _rotate(self) -> None:
        """Continue in a new segment, if the disk has space for one."""
        assert self._writing is not None
        old = self._writing
        if self._disk_full and time.monotonic() < self._disk_full_until_s:
            return
        try:
            self._start_segment(old.segment.number + 1)
        except OSError as error:
            with self._lock:
                self._lacks_room(error)
            segment_path(self.folder, old.segment.number + 1).unlink(missing_ok=True)
        else:
            old.close()

    def _start_segment(self, number: int, *, first: bool = False) -> None:
        """Write to a new segment with allocated space from now on. Raises OSError.

        The ``first`` one may lack space: a restart must read the journal on a full disk, too.
        """
        descriptor = create_segment(self.folder, number)
        segment = Segment(number)
        with self._lock:
            try:
                self._reserve.begin(descriptor, self._segment_bytes, self._pending_bytes)
            except OSError as error:
                if not first:
                    os.close(descriptor)
                    raise
                self._lacks_room(error)
            else:
                self._disk_full = ""
            self._writing = _Writing(segment, descriptor)
            self._kept.add(segment)
            self._durable = Position(number, 0)


def _wake(waiters: list[asyncio.Future[None]], reason: str | None) -> None:
    """Resolve futures of the event loop from the writer's thread, all in one callback."""
    if not waiters:
        return

    def resolve() -> None:
        for waiter in waiters:
            if waiter.done():
                continue
            if reason is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(JournalUnavailableError(reason))

    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all waiters
        waiters[0].get_loop().call_soon_threadsafe(resolve)
