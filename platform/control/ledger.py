"""The ledger's thread: it writes database rows from the journal, and stores its position.

Rows are upserted by id and the position is stored after the commit, so a row that is written more than
once counts once. After a restart of the machine the thread begins with the oldest segment. While the
database is unavailable the journal keeps everything on disk, and this thread retries with growing
pauses. Only one batch is in memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import orjson

from fairserve.engine.backoff import Backoff
from fairserve.platform.control.journal.entries import Entry
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.journal.segments import Position, read_entries
from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Rows,
)
from fairserve.platform.control.record import plain_of, record_of

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

RunKey = tuple[str, str, str]
"""Tenant, app and the client's id of a run."""


Sink = Callable[[Rows], None]
"""Writes and commits the rows, or raises and changes nothing."""


class Ledger:
    """Copies a journal into the database. Call ``start`` and ``close`` once."""

    def __init__(
        self,
        journal: Journal,
        sink: Sink,
        *,
        poison: tuple[type[Exception], ...] = (),
        retry_s: float = FIRST_RETRY_S,
    ) -> None:
        """``poison``: errors of the sink that the rows cause; the database causes any other."""
        self._journal = journal
        self._sink = sink
        self._poison = poison
        self._backoff = Backoff(retry_s, LAST_RETRY_S)
        self._state_path = journal.folder / "ledger.json"
        self._rejected_path = journal.folder / "rejected.jsonl"
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
        self._journal.subscribe(self._wake.set)
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def lag_bytes(self) -> int:
        """Return the bytes of the journal that are not in the database yet. From any thread."""
        return self._journal.bytes_after(self._position)

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
            while not self._stopping.is_set() and (rows := self._copy_batch()) is not None:
                most_rows = max(most_rows, rows)
            self._stopping.wait(GATHER_S)
            if most_rows > MANY_ROWS:
                self._hurry.wait(BUSY_S)

    def _copy_batch(self) -> int | None:
        """Copy a batch; return its rows once it is committed, None without one or on a stop."""
        end = self._journal.durable_position
        position = self._position
        if position >= end:
            return None
        batch = _Batch()
        for entry, after in read_entries(self._journal.folder, position, end, BATCH_BYTES):
            position = after
            if entry is not None:
                self._collect(entry, batch)
        if position == self._position:
            # The segments up to the durable end were deleted or are empty.
            position = end
        rows = batch.rows()
        if not self._write(rows):
            return None
        self._store(position)
        return len(rows)

    def _collect(self, entry: Entry, batch: _Batch) -> None:
        try:
            batch.add(entry)
        except TypeError as error:
            self._reject(entry, error)

    def _write(self, rows: Rows) -> bool:
        """Upsert until it succeeds; return false if the ledger stopped first."""
        if not rows:
            return True
        failures = 0
        began_s = time.monotonic()
        while True:
            try:
                self._sink(rows)
            except self._poison as error:
                self._write_singly(rows, error)
                return True
            except Exception as error:
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
                return True
            if self._stopping.wait(self._backoff.pause_s(failures)):
                return False

    def _write_singly(self, rows: Rows, error: Exception) -> None:
        """Write row by row, so that one row that the database rejects does not block the rest."""
        if len(rows) > 1:
            for each in rows.singly():
                self._write(each)
            return
        for record in rows.calls:
            self._reject(Entry("closed", "", plain_of(record)), error)
        for run in rows.ended:
            self._reject(Entry("interaction", "", plain_of(run)), error)
        for opened in rows.opened:
            self._reject(Entry("open_interaction", "", plain_of(opened)), error)

    def _reject(self, entry: Entry, error: Exception) -> None:
        """Append a row that can never be written to the file of rejected rows."""
        logger.error(
            "a ledger row cannot be written (%s): it is kept in %s", error, self._rejected_path
        )
        with contextlib.suppress(OSError), self._rejected_path.open("ab") as file:
            file.write(orjson.dumps({"kind": entry.kind, "data": entry.data}) + b"\n")

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

    def add(self, entry: Entry) -> None:
        """Add an entry. Raises TypeError if a field is missing that its record needs."""
        if entry.kind == "closed":
            self._calls[entry.key] = record_of(CallRecord, entry.data)
        elif entry.kind == "interaction":
            run = record_of(InteractionRecord, entry.data)
            key = (run.tenant, run.app, run.interaction_id)
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
