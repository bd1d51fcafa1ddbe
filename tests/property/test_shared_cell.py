"""Processes that apply one log have equal cells, and apply each batch once, whatever happened to it."""

import hashlib
import json
import os
import random
import subprocess
import sys
import zlib
from collections import Counter
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_cell_events import SYSTEMS as CONFIGURATIONS
from random_cell_events import RandomCellEvents, plain

from fairserve.platform.control import free_rows
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CallAnswer, CallChange, JournalRow
from fairserve.platform.control.log.redis_log import LogEntry, state_bytes
from fairserve.platform.control.log.shared_cell import FORGOTTEN_S, NO_ENTRY, EntryId, SharedCell
from fairserve.platform.control.log.wire import (
    EVENTS,
    EventBatch,
    LogTick,
    batch_bytes,
    batch_of,
    event_bytes,
    tick_bytes,
    tick_of,
)
from fairserve.platform.control.messages import Grant
from fairserve.platform.control.options import ControlOptions
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS

OPTIONS = ControlOptions(max_queue_wait_s=45.0, max_queued_calls=12, lease_s=60.0)
PROCESSES = ("p", "q", "r")
BEGIN_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    """Make calls and runs that used nothing share rows soon."""
    monkeypatch.setattr(free_rows, "MOST_ROWS", 3)
    monkeypatch.setattr(free_rows, "MAX_SHARED", 4)


class Process:
    """A process that applies entries, and what became of each event."""

    def __init__(self, name="fairserve", parameters=None, state=None):
        self.shared = SharedCell(Cell(SYSTEMS[name], OPTIONS, seed=1, parameters=parameters))
        if state is not None:
            self.shared.restore(orjson.loads(zlib.decompress(state)))
        self.applied, self.gaps = [], []
        self.on_outputs = lambda outputs: None

    def read(self, entry):
        if entry.kind == "t":
            self._took("", 0, 0, self.shared.tick(entry.entry, tick_of(entry.data)))
            return
        missing = self.shared.batch(entry.entry, entry.data, self._took)
        if missing:
            self.gaps.append((missing, batch_of(entry.data)[1]))

    def _took(self, process, number, place, applied):
        outputs = [*map(plain, applied.outputs)]
        kind, error = type(applied.event).__name__, type(applied.error).__name__
        self.applied.append((process, number, place, kind, outputs, error))
        self.on_outputs(applied.outputs)

    def state(self):
        return state_bytes(self.shared.snapshot())


class History:
    """Entries of several processes, whose events follow the outputs of one of them."""

    def __init__(self, process, seed):
        self.process, self.rng = process, random.Random(seed)
        self.source = RandomCellEvents(self.rng)
        process.on_outputs = self.source.took
        self.entries, self._last, self._numbers = [], NO_ENTRY, Counter()
        self._append("p", [*self.source.begin()])

    def _append(self, process, events):
        ms = BEGIN_MS + int(self.source.now_s * 1000)
        # Every second number of a millisecond is free for entries that a test adds.
        number = self._last.number + 100 if self._last.ms == ms else 100
        self._last = EntryId(ms, number)
        if process is None:
            tick = LogTick("p", *self.process.shared.latest_check(), str(NO_ENTRY))
            entry = LogEntry(self._last, "t", tick_bytes(tick))
        else:
            self._numbers[process] += 1
            batch = EventBatch(
                process, self._numbers[process], [event_bytes(each) for each in events]
            )
            entry = LogEntry(self._last, "b", batch_bytes(batch))
        self.entries.append(entry)
        self.process.read(entry)

    def extend(self, entries):
        """Append entries."""
        for _ in range(entries):
            events = [self.source.next() for _ in range(self.rng.choice([1, 1, 2, 3, 6]))]
            shared = [each for each in events if type(each) in EVENTS]
            if shared:
                self._append(self.rng.choice(PROCESSES), shared)
            if len(shared) < len(events):
                self._append(None, [])


# --- equal states -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_restored_process_equals_the_others(name, parameters, seed, before):
    original = Process(name, parameters)
    history = History(original, seed)
    history.extend(before)
    restored, cut = Process(state=original.state()), len(original.applied)
    assert restored.state() == original.state()
    follower = Process(name, parameters)
    history.extend(30)
    for entry in history.entries:
        follower.read(entry)
        if entry.entry > restored.shared.last:
            restored.read(entry)
    assert follower.applied == original.applied
    assert restored.applied == original.applied[cut:]
    assert restored.state() == follower.state() == original.state()
    assert restored.shared.check == follower.shared.check == original.shared.check
    assert not original.gaps + follower.gaps + restored.gaps


def digest(seed):
    """Return a digest of the outputs and of the last state of a random history."""
    process = Process(*CONFIGURATIONS[1])
    History(process, seed).extend(200)
    found = hashlib.sha256(repr(process.applied).encode())
    found.update(json.dumps(process.shared.snapshot()).encode())
    return found.hexdigest()


def test_the_order_of_hashes_changes_nothing():
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_shared_cell;"
        " print(test_shared_cell.digest(5))"
    )
    folder = os.path.dirname(__file__)
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": folder},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(found) == 1
    assert found.pop().strip()


# --- check sums -------------------------------------------------------------------------------------


def test_ticks_carry_check_sums_that_find_a_process_with_other_outputs():
    ours, other = Process(), Process()
    history = History(ours, 3)
    history.extend(60)
    ticks = [each for each in history.entries if each.kind == "t"]
    checks = []
    for entry in history.entries:
        if entry.kind == "t":
            checks.append(other.shared.differs(tick_of(entry.data)))
        other.read(entry)
    assert len(checks) == len(ticks) > 10
    assert not any(checks)

    other = Process()
    for entry in history.entries:
        if entry.kind == "b" and entry.entry > ticks[2].entry:
            continue  # it misses what the others read
        if entry.kind == "t":
            checks.append(other.shared.differs(tick_of(entry.data)))
        other.read(entry)
    assert any(checks)


# --- what is lost, repeated, or out of order --------------------------------------------------------


def disturbed(entries, rng):
    """Return the entries with repeats, and with batches that are lost and written again later."""
    batches = [
        (each.entry, *batch_of(each.data)[:2], each.data) for each in entries if each.kind == "b"
    ]
    found = []
    for before, entry in pairwise([LogEntry(NO_ENTRY, "t", b""), *entries]):
        for number in range(1, rng.choice([1, 1, 2, 4])):
            # A batch that was written before, or a later one of a process whose next one got lost.
            sender = rng.choice(PROCESSES)
            written = [each for each in batches if each[0] <= before.entry]
            lost = [each for each in batches if each[0] > before.entry and each[1] == sender]
            chosen = (
                rng.choice(written if rng.random() < 0.5 else lost[1:] or [None])
                if written
                else None
            )
            if chosen is not None:
                at = before.entry._replace(number=before.entry.number + number)
                found.append(LogEntry(at, "b", chosen[-1]))
        found.append(entry)
    return found


class Grants:
    """The grants in the outputs of a cell; a call that waits gets one."""

    def __init__(self):
        self.granted, self._waiting = 0, Counter()

    def took(self, outputs):
        for output in outputs:
            match output:
                case JournalRow("accepted", key) | CallChange(CallState(record_id=key), "requeued"):
                    self._waiting[key] += 1
                case CallAnswer(key, Grant()):
                    self.granted += 1
                    self._waiting[key] -= 1
                    assert self._waiting[key] == 0, f"{key} is granted twice"


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32))
def test_each_batch_is_applied_once_and_each_call_granted_once(name, parameters, seed):
    original, process = Process(name, parameters), Process(name, parameters)
    history, grants = History(original, seed), Grants()
    history.extend(40)
    log = disturbed(history.entries, random.Random(seed))
    process.on_outputs = grants.took
    for entry in log:
        process.read(entry)
        assert process.shared.last == entry.entry
    assert process.applied == original.applied
    assert process.state() == original.state()
    assert grants.granted == sum(
        isinstance(output[-1], Grant) for *_, outputs, _ in original.applied for output in outputs
    )

    batches = Counter(batch_of(entry.data)[:2] for entry in history.entries if entry.kind == "b")
    places = Counter(each[:4] for each in process.applied if each[0])
    assert set(batches.values()) == set(places.values()) == {1}
    assert {each[:2] for each in places} == set(batches)
    # Each gap is reported, in the order of the log.
    seen, gaps = Counter(), []
    for entry in log:
        if entry.kind == "b":
            sender, number, _ = batch_of(entry.data)
            if number == seen[sender] + 1:
                seen[sender] += 1
            elif number > seen[sender]:
                gaps.append((sender, number))
    assert process.gaps == gaps


def test_the_first_batches_of_a_process_may_be_lost_too():
    process = Process()
    batches = [
        batch_bytes(EventBatch("p", number, [event_bytes(ev.WorkerJoined(f"w{number}", 100))]))
        for number in (1, 2, 3)
    ]
    for place, number in enumerate((2, 3, 1, 3, 2, 3, 1), start=1):
        process.read(LogEntry(EntryId(BEGIN_MS + place, 0), "b", batches[number - 1]))
    assert [each[1] for each in process.applied] == [1, 2, 3]
    assert process.gaps == [("p", 2), ("p", 3), ("p", 3)]


def test_a_process_is_forgotten_after_it_wrote_nothing_for_an_hour():
    process = Process()
    data = batch_bytes(EventBatch("p", 1, [event_bytes(ev.WorkerReported("w"))]))
    tick = tick_bytes(LogTick("q", "", 0, ""))
    process.read(LogEntry(EntryId(BEGIN_MS, 0), "b", data))
    hour_ms = int(FORGOTTEN_S * 1000)
    process.read(LogEntry(EntryId(BEGIN_MS + hour_ms, 0), "t", tick))
    assert process.shared.seen("p") == 1
    process.read(LogEntry(EntryId(BEGIN_MS + hour_ms + 1, 0), "t", tick))
    assert process.shared.seen("p") == 0
    assert process.shared.snapshot()["seen"] == {}
