"""The ledger's thread: it writes database rows from the journal, and stores its position.

Rows are upserted by id and the position is stored after the commit, so a row that is written more than
once counts once. After a restart of the machine the thread begins with the oldest segment. While the
database is unavailable the journal keeps everything on disk, and this thread retries with growing
pauses. Only one batch is in memory.

No row stops another: what the database rejects of a batch (:mod:`fairserve.platform.db.apart`) is set
aside (:mod:`fairserve.platform.control.rejected_rows`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import orjson

from fairserve.engine.backoff import Backoff
from fairserve.platform.control.journal.entries import JournalEntry, Kind
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.journal.segments import Position, read_entries
from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Record,
    Rows,
)
from fairserve.platform.control.record import plain_of, record_of
from fairserve.platform.control.rejected_rows import RejectedRows
from fairserve.platform.db.apart import write_apart

logger = logging.getLogger(__name__)

BATCH_BYTES = 1024 * 1024
FIRST_RETRY_S = 0.2
LAST_RETRY_S = 10.0
GATHER_S = 0.2
"""Pause between batches, so that a server with calls writes a few a second, not one per call."""
BUSY_S = 0.8
"""Further pause after a batch of many rows: a batch costs as much as a hundred rows in it. It ends when
somebody waits for the ledger (:meth:`Ledger.flush`)."""
MANY_ROWS = 8
MAX_REASON_CHARS = 300
_NO_ROWS: tuple[Kind, ...] = ("accepted", "progress")
"""Kinds of entries that make no row."""
_NO_MARKS: tuple[Kind, ...] = (*_NO_ROWS, "closed", "interaction", "open_interaction")

RunKey = tuple[str, str, str]
"""Tenant, app and the client's id of a run."""


class Marks(Protocol):
    """Among processes that have the same rows: who writes them, and how far. From any thread."""

    @property
    def writes(self) -> bool:
        """True if this process writes the rows."""
        ...

    def is_stored(self, mark: str) -> bool:
        """Return whether another process has written all rows before a mark of the journal."""
        ...

    def stored(self, mark: str) -> None:
        """Note that this process has written all rows before a mark."""


class _OwnRows:
    """The marks of a process that writes its rows alone: there are none."""

    writes = True

    def is_stored(self, mark: str) -> bool:
        return False

    def stored(self, mark: str) -> None:
        pass


class _StoppedError(Exception):
    """The ledger stopped before its rows were written."""


def _is_of_rows(error: Exception) -> bool:
    return not isinstance(error, _StoppedError)


class RowSink(Protocol):
    """Writes the rows."""

    def write(self, rows: Rows) -> None:
        """Write and commit the rows, or raise and change nothing. Blocks."""

    def blames_rows(self, error: Exception) -> bool:
        """Return whether the rows caused an error of ``write``, and not the database. Blocks."""
        ...


class Ledger:
    """Copies a journal into the database. Call ``start`` and ``close`` once."""

    def __init__(
        self,
        journal: Journal,
        sink: RowSink,
        *,
        retry_s: float = FIRST_RETRY_S,
        marks: Marks = _OwnRows(),
    ) -> None:
        """With ``marks`` the rows are written here only while this process is to write them."""
        self._marks = marks
        self._journal = journal
        self._sink = sink
        self._backoff = Backoff(retry_s, LAST_RETRY_S)
        self._state_path = journal.folder / "ledger.json"
        self._rejected = RejectedRows(journal.folder)
        self._wake = threading.Event()
        self._hurry = threading.Event()
        """Ends the further pause: somebody waits for the ledger."""
        self._stopping = threading.Event()
        self._caught_up = threading.Condition()
        self._position = _load_position(self._state_path)
        self.waits_since_s: float | None = None
        """Monotonic time since which the database accepts no rows; None while it does."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin where the last process stopped."""
        if self._position > self._journal.durable_position:
            # The folder was emptied except for this file: its position is void.
            self._position = Position(0, 0)
        try:
            self._rejected.open()
        except OSError as error:
            logger.error("the rejected ledger rows cannot be counted: %s", error)
        if self.rejected_rows:
            self._log_rejected()
        self._journal.subscribe(self._wake.set)
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def lag_bytes(self) -> int:
        """Return the bytes of the journal that are not in the database yet. From any thread."""
        return self._journal.bytes_after(self._position)

    @property
    def rejected_rows(self) -> int:
        """Number of rows that are set aside because the database rejects them. From any thread."""
        return self._rejected.count

    def waiting_s(self) -> float:
        """Return the seconds for which the database has accepted no rows; 0 while it does."""
        since_s = self.waits_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def flush(self, timeout_s: float) -> bool:
        """Wait until all entries so far are in the database; return whether they are."""
        end_s = time.monotonic() + timeout_s
        synced = self._journal.sync(timeout_s)
        target = self._journal.durable_position
        self._wake.set()
        self._hurry.set()
        with self._caught_up:
            left_s = max(0.0, end_s - time.monotonic())
            caught_up = self._caught_up.wait_for(lambda: self._position >= target, left_s)
        return synced and caught_up

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush for at most ``timeout_s`` and stop; return whether everything was written.

        The rest stays in the journal, and the next start continues with it.
        """
        complete = self.flush(timeout_s)
        self._stopping.set()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        return complete

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            most_rows = 0
            while not self._stopping.is_set() and (rows := self._next_batch()) is not None:
                most_rows = max(most_rows, rows)
            self._stopping.wait(GATHER_S)
            if most_rows > MANY_ROWS:
                self._hurry.wait(BUSY_S)

    def _next_batch(self) -> int | None:
        return self._copy_batch() if self._marks.writes else self._skip_batch()

    def _skip_batch(self) -> int | None:
        """Skip rows that another process has written; return 0, or None if there are none."""
        position, end = self._position, self._journal.durable_position
        try:
            for entry, after in read_entries(
                self._journal.folder, position, end, BATCH_BYTES, but=_NO_MARKS
            ):
                if entry is not None:
                    if not self._marks.is_stored(entry.key):
                        break
                    position = after
        except OSError as error:
            logger.error("the journal cannot be read: %s", error)
        if position == self._position:
            return None
        self._store(position)
        return 0

    def _copy_batch(self) -> int | None:
        """Copy a batch; return its rows once it is committed, None without one or on a stop."""
        end = self._journal.durable_position
        start = position = self._position
        if position >= end:
            return None
        batch, mark = _Batch(), ""
        damaged: list[tuple[JournalEntry, Exception]] = []
        while True:
            try:
                for entry, after in read_entries(
                    self._journal.folder, start, end, BATCH_BYTES, but=_NO_ROWS
                ):
                    position = after
                    if entry is not None and entry.kind == "mark":
                        mark = entry.key
                    elif entry is not None:
                        try:
                            batch.add(entry)
                        except (TypeError, ValueError, AttributeError) as error:
                            damaged.append((entry, error))
                break
            except OSError as error:
                logger.error("the journal cannot be read: %s", error)
                if self._stopping.wait(LAST_RETRY_S):
                    return None
                batch, damaged, position = _Batch(), [], start
        if position == start:
            # The segments up to the durable end were deleted or are empty.
            position = end
        rows = batch.rows()
        if not all(self._reject(entry, error) for entry, error in damaged):
            return None
        try:
            rejected = write_apart(self._write, rows.records(), _is_of_rows)
        except _StoppedError:
            return None
        if not all(self._reject(_entry(record), error) for record, error in rejected):
            return None
        self._store(position)
        if mark:
            self._marks.stored(mark)
        return len(rows)

    def _write(self, records: Sequence[Record]) -> None:
        """Upsert, and retry while the database is away.

        Raises the sink's error if the rows caused it, and _StoppedError if the ledger stopped first.
        """
        rows = Rows.of(records)
        failures = 0
        began_s = time.monotonic()
        while True:
            try:
                self._sink.write(rows)
            except Exception as error:
                if self._sink.blames_rows(error):
                    self.waits_since_s = None
                    raise
                if not failures:
                    logger.warning("the ledger waits for the database: %s", type(error).__name__)
                    logger.debug("the ledger's database error", exc_info=error)
                failures += 1
                self.waits_since_s = began_s
            else:
                self.waits_since_s = None
                if failures:
                    waited_s = time.monotonic() - began_s
                    logger.warning("the database is back after %.1f s", waited_s)
                return
            if self._stopping.wait(self._backoff.pause_s(failures)):
                raise _StoppedError

    def _reject(self, entry: JournalEntry, error: Exception) -> bool:
        """Set a row aside that can never be written; return false if the ledger stopped first."""
        reason = _reason(error)
        failures = 0
        while True:
            try:
                self._rejected.keep(entry, reason)
            except OSError as full:
                failures += 1
                logger.error("a rejected ledger row cannot be kept: %s", full)
            else:
                logger.error(
                    "the database rejects the %s row %s: %s", entry.kind, entry.key, reason
                )
                self._log_rejected()
                return True
            if self._stopping.wait(self._backoff.pause_s(failures)):
                return False

    def _log_rejected(self) -> None:
        logger.error(
            "%d ledger rows are set aside in %s: usage and budgets lack them",
            self.rejected_rows,
            self._rejected.path,
        )

    def _store(self, position: Position) -> None:
        """Store the position. If that fails the rows are upserted again later, which is harmless.

        The file is not synced: it is ignored after a restart of the machine.
        """
        plain = {"segment": position.segment, "offset": position.offset, "boot": _boot_id()}
        try:
            draft = self._state_path.with_suffix(".tmp")
            draft.write_bytes(orjson.dumps(plain))
            draft.replace(self._state_path)
        except OSError as error:
            logger.warning("the ledger's position cannot be stored: %s", error)
        else:
            self._journal.ledgered(position)
        with self._caught_up:
            self._position = position
            self._caught_up.notify_all()


class _Batch:
    """Records of entries in their order, the last of each id: an upsert accepts an id only once."""

    def __init__(self) -> None:
        self._calls: dict[str, CallRecord] = {}
        self._ended: dict[RunKey, InteractionRecord] = {}
        self._opened: dict[RunKey, OpenInteractionRecord] = {}

    def add(self, entry: JournalEntry) -> None:
        """Add an entry. Raises TypeError or AttributeError if its data makes no record."""
        if entry.kind == "closed":
            call = record_of(CallRecord, entry.data)
            self._calls[call.call_id] = call
        elif entry.kind == "interaction":
            run = record_of(InteractionRecord, entry.data)
            key = (run.tenant, run.app, run.interaction_id)
            self._ended.pop(key, None)  # a shared row counts the later run
            self._ended[key] = run
            self._opened.pop(key, None)
        elif entry.kind == "open_interaction":
            opened = record_of(OpenInteractionRecord, entry.data)
            self._opened[opened.tenant, opened.app, opened.interaction_id] = opened

    def rows(self) -> Rows:
        """Return the rows collected so far."""
        return Rows(
            tuple(self._calls.values()), tuple(self._ended.values()), tuple(self._opened.values())
        )


def _entry(record: Record) -> JournalEntry:
    """Return the entry of a row, without those of its keys that are in the data."""
    if isinstance(record, CallRecord):
        return JournalEntry("closed", record.call_id, plain_of(record))
    kind: Kind = "interaction" if isinstance(record, InteractionRecord) else "open_interaction"
    return JournalEntry(kind, record.interaction_id, plain_of(record))


def _reason(error: Exception) -> str:
    """Return the error in one line, without the statement and its parameters."""
    text = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"{type(error).__name__}: {text}"[:MAX_REASON_CHARS]


def _load_position(path: Path) -> Position:
    """Return the stored position; the beginning if there is none, or it is of an earlier boot.

    SQLite in WAL mode does not sync every commit: if the machine fails, the database may lose the last
    ones. The journal keeps one segment more than it needs, and all of it is upserted again then.
    """
    try:
        plain = orjson.loads(path.read_bytes())
        if not plain["boot"] or plain["boot"] != _boot_id():
            return Position(0, 0)
        return Position(int(plain["segment"]), int(plain["offset"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position(0, 0)


@cache
def _boot_id() -> str:
    """Return an id that changes when the machine starts; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
