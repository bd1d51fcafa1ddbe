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

from fairserve.interactions.tracking.run import RestoredRun
from fairserve.platform.control import free_rows
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    JournalRow,
    RunRestored,
)
from fairserve.platform.control.client_state import client_levels, client_state
from fairserve.platform.control.log import live_processes
from fairserve.platform.control.log.redis_log import LogEntry, state_bytes
from fairserve.platform.control.log.shared_cell import (
    CELL_VERSION,
    FORGOTTEN_S,
    NO_ENTRY,
    EntryId,
    SharedCell,
)
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
SILENT_TICKS, LOST_TICKS = 2, 4
CALL_STEPS = ("accepted", "granted", "requeued", "ended", "dropped")
BEGIN_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch):
    """Make calls and runs that used nothing share rows soon, and processes that are silent be lost."""
    monkeypatch.setattr(free_rows, "MOST_ROWS", 3)
    monkeypatch.setattr(free_rows, "MAX_SHARED", 4)
    monkeypatch.setattr(live_processes, "SILENT_TICKS", SILENT_TICKS)
    monkeypatch.setattr(live_processes, "LOST_TICKS", LOST_TICKS)


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


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32))
def test_what_a_server_reads_for_its_clients_changes_nothing(name, parameters, seed):
    original, reader = Process(name, parameters), Process(name, parameters)
    history = History(original, seed)
    history.extend(60)
    owners = set()
    for entry in history.entries:
        reader.read(entry)
        ahead_s, dispatcher = entry.entry.at_s + 0.25, reader.shared.cell.dispatcher
        owners |= {live.owner for live in reader.shared.cell.calls}
        for owner in owners:
            dispatcher.limits_in_use(owner, ahead_s, ahead_s)
            client_levels(dispatcher, owner)
            client_state(dispatcher, owner)
    assert reader.applied == original.applied
    assert reader.state() == original.state()


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


# --- versions ---------------------------------------------------------------------------------------

DECISIONS = {1: "afd06c2a3098ae7e46d4c81518cdbb490619d1428563e8e2362f3ba6a1efd5c8"}
"""Digest of the histories below by the version of the cell."""
OTHERS = tuple((name, {}) for name in ("fcfs", "vtc-predict", "lpm", "cache-aware", "d2lpm"))
"""The product's other systems."""


def test_other_decisions_are_another_version():
    kinds, found = set(), hashlib.sha256()
    for seed, (name, parameters) in enumerate((*CONFIGURATIONS, *OTHERS)):
        process = Process(name, parameters)
        history = History(process, seed)
        run = RestoredRun("R9", ("t", "a", "u1"), opened_age_s=5.0)
        history._append("p", [RunRestored(run, 1_000_000.0)])
        history.extend(60)
        kinds |= {kind for *_, kind, _, _ in process.applied}
        for entry in history.entries:
            found.update(bytes(sorted(entry.data)))  # sets travel in any order
        found.update(repr(process.applied).encode())
        found.update(json.dumps(process.shared.snapshot()).encode())
    assert not {kind.__name__ for kind in EVENTS} - kinds, "no history has these events"
    assert DECISIONS.get(CELL_VERSION) == found.hexdigest(), (
        "The cell decides otherwise than its version says, or its state, the entries of the log, or the"
        " random events are others. Servers of the last release must not share a cell with it: raise"
        " CELL_VERSION (platform/control/log/shared_cell.py) if that release has the same, see that this"
        " one reads a state and a log of it, and write the digest here:"
        f" {{{CELL_VERSION}: {found.hexdigest()!r}}}"
    )


# --- check sums -------------------------------------------------------------------------------------


def test_ticks_carry_check_sums_that_find_a_process_with_other_outputs():
    ours, other = Process(), Process()
    history = History(ours, 3)
    history.extend(100)
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
            sender, number, *_ = batch_of(entry.data)
            if number == seen[sender] + 1:
                seen[sender] += 1
            elif number > seen[sender]:
                gaps.append((sender, number))
    assert process.gaps == gaps


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32))
def test_the_calls_of_a_process_end_when_it_is_lost(name, parameters, seed):
    process = Process(name, parameters)
    History(process, seed).extend(80)
    silent, live, running, owners = Counter(), set(), set(), {}
    for sender, _, _, _, outputs, _ in process.applied:
        steps = [each for each in outputs if len(each) == 4 and each[1] in CALL_STEPS]
        if sender:
            silent[sender] = 0
            owners |= {key: sender for key, step, *_ in steps if step == "accepted"}
        else:
            silent.update(PROCESSES)
            lost = {
                key
                for key in live
                if silent[owners[key]] >= LOST_TICKS
                or (silent[owners[key]] == SILENT_TICKS and key not in running)
            }
            assert {key for key, *_, reason in steps if reason == "server lost"} == lost
        for key, step, *_ in steps:
            (live.discard if step in ("ended", "dropped") else live.add)(key)
            (running.add if step == "granted" else running.discard)(key)
    assert {each.record_id for each in process.shared.cell.calls} == live


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
