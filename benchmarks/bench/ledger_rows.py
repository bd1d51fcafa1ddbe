"""Cost of a call's rows: from the journal's lines to the database, and in their quarter hour's rollup.

A batch is what a server with 130 calls a second writes once a second: a call and its run each, read from
lines of the journal and upserted into SQLite in one transaction, on top of the rows of earlier calls. A
rollup sums a quarter hour with all of its calls, of 50 users, as the job of a server does.

The commit does not wait for the disk; SQLite's checkpoints do, whose time is not the thread's.
"""

from __future__ import annotations

import contextlib
import tempfile
import weakref

from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns
from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.journal.entries import decode, encode
from fairserve.platform.control.messages import CallRecord, InteractionRecord, Rows
from fairserve.platform.control.record import plain_of, record_of
from fairserve.platform.db.base import new_id
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.schema import upgrade
from fairserve.platform.db.usage_marks import mark
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.server.ledger_rows import LedgerRows

BATCH = "ledger_us_per_call"
ROLLUP = "rollup_us_per_call"
BATCH_CALLS = 130
_QUARTER = 1_767_225_600
_USERS = 50
_AT_ONCE = 1000


class _Database:
    """A SQLite database in a temporary folder with the rows of some calls."""

    def __init__(self, calls: int) -> None:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            engine = connect(f"sqlite:///{folder}/bench.db")
            stack.callback(engine.dispose)
            upgrade(engine)
            weakref.finalize(self, stack.pop_all().close)
        self.sessions = session_factory(engine)
        outbox = Outbox(BackgroundSettings(), "USD")
        self._rows = LedgerRows(self.sessions, KeyHasher(b"x" * 32), outbox)
        self._calls = 0
        for begin in range(0, calls, _AT_ONCE):
            self.write(self.lines(min(_AT_ONCE, calls - begin)))

    def write(self, batch: list[bytes]) -> None:
        """Write the rows of lines of the journal, as the ledger does."""
        calls, runs = [], []
        for line in batch:
            entry = decode(line)
            assert entry is not None
            if entry.kind == "closed":
                calls.append(record_of(CallRecord, entry.data))
            else:
                runs.append(record_of(InteractionRecord, entry.data))
        self._rows.write(Rows(calls, runs))

    def lines(self, calls: int) -> list[bytes]:
        """Return the journal's lines of the ends of new calls and of their runs."""
        self._calls += calls
        return [
            line
            for number in range(self._calls - calls, self._calls)
            for line in _lines(number, _QUARTER + number / BATCH_CALLS)
        ]


class LedgerBatches:
    """Batches of new calls, on top of the rows of earlier ones."""

    def __init__(self, earlier: int, batches: int) -> None:
        self._database = _Database(earlier)
        self._batches = batches

    def round(self) -> Reading:
        """Write the batches of one round."""
        batches = [self._database.lines(BATCH_CALLS) for _ in range(self._batches)]
        begin_ns = cpu_ns()
        for batch in batches:
            self._database.write(batch)
        return Reading({BATCH: (cpu_ns() - begin_ns) / 1000 / (self._batches * BATCH_CALLS)})


class Rollup:
    """A rollup of one quarter hour with many calls."""

    def __init__(self, calls: int) -> None:
        self._database = _Database(calls)
        self._calls = calls

    def round(self) -> Reading:
        """Roll the quarter hour up once."""
        with self._database.sessions.begin() as session:
            mark(session, [("tenant", "app", _QUARTER)])
        begin_ns = cpu_ns()
        assert roll_up(self._database.sessions)
        return Reading({ROLLUP: (cpu_ns() - begin_ns) / 1000 / self._calls})


def _lines(number: int, at: float) -> tuple[bytes, bytes]:
    call_id, run_id, user = new_id("call"), new_id("run"), f"user-{number % _USERS}"
    call = CallRecord(
        call_id,
        "tenant",
        "app",
        user,
        "model",
        run_id,
        1,
        None,
        "completed",
        at,
        at + 0.5,
        input_tokens=297,
        system_tokens=150,
        extend_tokens=447,
        output_tokens=4,
        expected_output_tokens=4,
        service=455.0,
        queue_delay_s=number % 13 / 100,
        ttft_s=number % 7 / 10,
        duration_s=0.5,
        worker="w0",
        name=call_id,
        served_model="model",
    )
    run = InteractionRecord(run_id, "tenant", "app", user, "complete", at, at + 0.5, 1, 451, 0)
    return (
        encode("closed", call_id, plain_of(call)),
        encode("interaction", f"app/{run_id}", plain_of(run)),
    )
