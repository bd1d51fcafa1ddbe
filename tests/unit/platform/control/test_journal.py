"""Durable entries persist, a torn tail is cut, and a bad disk rejects only new calls."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading

import pytest
from until import turn, until

from fairserve.platform.control.journal import journal as module
from fairserve.platform.control.journal.journal import Journal, JournalUnavailableError
from fairserve.platform.control.journal.segments import (
    Position,
    read_entries,
    segment_numbers,
    segment_path,
)


@pytest.fixture
def open_journal(tmp_path):
    journals = []

    def make(**options):
        journal = Journal(tmp_path / "journal", **options)
        journals.append(journal)
        return journal, journal.open()

    yield make
    for journal in journals:
        journal.close()


def entries(journal):
    end = journal.durable_position
    read = read_entries(journal.folder, Position(0, 0), end, 1 << 30)
    return [(entry.kind, entry.key) for entry, _ in read if entry is not None]


async def accept(journal, key):
    await journal.durable(journal.append("accepted", key, {"key": key}))


async def test_an_accepted_call_is_on_disk_when_durable_returns(open_journal):
    journal, _ = open_journal()
    await asyncio.gather(*(accept(journal, f"c{n}") for n in range(50)))
    assert sorted(entries(journal)) == sorted(("accepted", f"c{n}") for n in range(50))


async def test_concurrent_calls_share_syncs(open_journal):
    syncs = []

    def sync(descriptor):
        syncs.append(1)
        os.fdatasync(descriptor)

    journal, _ = open_journal(sync=sync)
    await asyncio.gather(*(accept(journal, f"c{n}") for n in range(200)))
    assert len(syncs) < 200


async def test_written_entries_survive_the_process_before_a_sync(open_journal):
    may_sync, syncing = threading.Event(), threading.Event()

    def sync(descriptor):
        syncing.set()
        assert may_sync.wait(20)
        os.fdatasync(descriptor)

    journal, _ = open_journal(sync=sync)
    await journal.written()  # nothing to wait for
    accepted = asyncio.create_task(accept(journal, "a"))
    await asyncio.to_thread(syncing.wait, 20)
    await journal.written()
    assert b'"accepted"' in segment_path(journal.folder, 1).read_bytes()
    journal.append("closed", "a", {})
    closed = asyncio.create_task(journal.written())
    done, _ = await asyncio.wait([closed, accepted], timeout=0.05)
    assert not done, "the disk is still busy with what came before"
    assert b'"closed"' not in segment_path(journal.folder, 1).read_bytes()
    may_sync.set()
    await closed
    assert b'"closed"' in segment_path(journal.folder, 1).read_bytes()
    await accepted


async def test_the_entries_of_a_turn_are_written_at_its_end(open_journal, monkeypatch):
    """The thread sleeps: a write by it would cost more."""
    monkeypatch.setattr(module, "LAZY_SYNC_S", 3600)
    journal, _ = open_journal()
    await accept(journal, "a")
    await until(lambda: not journal._busy)
    journal.append("progress", "a", {})
    journal.append("closed", "a", {})
    file = segment_path(journal.folder, 1)
    assert b'"progress"' not in file.read_bytes()
    await turn()
    await turn()
    assert [line[18:24] for line in file.read_bytes().splitlines()[1:3]] == [b"progre", b"closed"]
    assert entries(journal) == [("accepted", "a")], "they are not synced"


async def test_an_entry_without_a_waiter_is_synced_while_the_thread_sleeps(
    open_journal, monkeypatch
):
    monkeypatch.setattr(module, "LAZY_SYNC_S", 0.01)
    journal, _ = open_journal()
    await accept(journal, "a")
    await until(lambda: journal._asleep)
    journal.append("closed", "a", {})
    await until(lambda: entries(journal) == [("accepted", "a"), ("closed", "a")])


def test_entries_of_a_loop_that_has_ended_are_synced(open_journal):
    journal, _ = open_journal()

    async def append():
        await until(lambda: not journal._busy)
        asyncio.get_running_loop().stop()
        journal.append("closed", "a", {})

    loop = asyncio.new_event_loop()
    task = loop.create_task(append())
    loop.run_forever()
    loop.close()
    assert task.done()
    assert journal.sync(20)
    journal.append("closed", "b", {})
    assert journal.sync(20)
    assert entries(journal) == [("closed", "a"), ("closed", "b")]


async def test_no_call_waits_for_an_unwritable_disk(open_journal):
    journal, _ = open_journal()
    await accept(journal, "a")
    descriptor = journal._writing.descriptor
    disk = os.dup(descriptor)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)
    journal.append("closed", "a", {})
    await journal.written()
    os.dup2(disk, descriptor)
    os.close(disk)
    assert await asyncio.to_thread(journal.sync, 20)
    assert entries(journal) == [("accepted", "a"), ("closed", "a")]


async def test_entries_of_unwanted_kinds_are_passed_unread(open_journal):
    journal, _ = open_journal()
    await accept(journal, "a")
    await accept(journal, "b")
    journal.append("closed", "a", {})
    assert await asyncio.to_thread(journal.sync, 20)
    end = journal.durable_position
    read = list(read_entries(journal.folder, Position(0, 0), end, 1 << 30, but=("accepted",)))
    assert [None if entry is None else entry.key for entry, _ in read] == [None, None, "a"]
    assert read[-1][1] == end


async def test_open_calls_are_restored_with_their_last_progress(open_journal):
    journal, _ = open_journal()
    await accept(journal, "open")
    await accept(journal, "done")
    journal.append("progress", "open", {"output_tokens": 3})
    journal.append("progress", "open", {"output_tokens": 9})
    journal.append("closed", "done", {})
    journal.close()
    _, left = open_journal()
    assert [(call.key, call.progress) for call in left] == [("open", {"output_tokens": 9})]


@pytest.mark.parametrize("torn", [b"0000", b'deadbeef {"kind": "accep', b"\x00" * 40, b"x" * 9000])
async def test_a_torn_tail_is_cut_and_the_rest_is_kept(open_journal, torn):
    journal, _ = open_journal()
    await accept(journal, "a")
    journal.close()
    path = segment_path(journal.folder, segment_numbers(journal.folder)[-1])
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    _, left = open_journal()
    assert [call.key for call in left] == ["a"]
    assert path.read_bytes() == whole


async def test_a_damaged_line_in_the_middle_affects_no_other(open_journal):
    journal, _ = open_journal()
    for key in "abc":
        await accept(journal, key)
    journal.close()
    path = segment_path(journal.folder, segment_numbers(journal.folder)[-1])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"accepted", b"accepteD")
    path.write_bytes(b"".join(lines))
    _, left = open_journal()
    assert [call.key for call in left] == ["a", "c"]


async def test_a_full_disk_rejects_new_calls_and_keeps_rows_of_old_ones(open_journal):
    broken = False

    def sync(descriptor):
        if broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fdatasync(descriptor)

    journal, _ = open_journal(sync=sync)
    await accept(journal, "old")
    broken = True
    journal.append("closed", "old", {"row": 1})
    with pytest.raises(JournalUnavailableError, match="No space left"):
        await accept(journal, "new")  # rejected at the sync, later ones immediately
    with pytest.raises(JournalUnavailableError, match="No space left"):
        await accept(journal, "newer")
    synced = threading.Event()
    journal.subscribe(synced.set)
    broken = False
    assert await asyncio.to_thread(synced.wait, 20)  # the old call's row was kept: retried
    await accept(journal, "later")
    assert entries(journal) == [("accepted", "old"), ("closed", "old"), ("accepted", "later")]


async def test_calls_of_other_servers_leave_nothing_in_memory_where_the_disk_fails(open_journal):
    failed, broken = threading.Semaphore(0), True

    def sync(descriptor):
        if broken:
            failed.release()
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(descriptor)

    journal, _ = open_journal(sync=sync, awaited=False)
    for number in range(3):
        sequence = journal.append("accepted", f"c{number}", {})
        assert await asyncio.to_thread(failed.acquire, timeout=20)
        await until(lambda: journal.sizes()[1] == 0 and journal._failure is None)
    await journal.durable(sequence)
    assert len(journal._unsynced) == 0
    broken = False


async def test_the_journal_is_bounded_during_a_database_outage(open_journal):
    journal, _ = open_journal(max_bytes=10_000, segment_bytes=4096)

    async def accept_many():
        for n in range(1000):
            await accept(journal, f"c{n}")

    with pytest.raises(JournalUnavailableError, match="not in the database"):
        await accept_many()
    journal.append("closed", "c0", {})  # a running call may still end


async def test_segments_are_deleted_once_ledgered_and_without_open_calls(open_journal):
    journal, _ = open_journal(segment_bytes=4096)
    await accept(journal, "long")
    for n in range(300):
        await accept(journal, f"c{n}")
        journal.append("closed", f"c{n}", {})
    await accept(journal, "last")
    assert len(segment_numbers(journal.folder)) > 3
    journal.ledgered(journal.durable_position)
    first = segment_numbers(journal.folder)[0]
    assert first == 1, "the first holds an open call"
    journal.append("closed", "long", {})
    await accept(journal, "and this makes it durable")
    journal.ledgered(journal.durable_position)
    remaining = segment_numbers(journal.folder)
    assert remaining[0] > first
    assert len(remaining) <= 3


# --- a full disk ----------------------------------------------------------------------------------


class Disk:
    """A disk with space for ``room_bytes`` bytes of files; ``None``: unlimited."""

    def __init__(self, room_bytes):
        self.room_bytes = room_bytes

    def allocate(self, descriptor, offset, length):
        if self.room_bytes is not None and offset + length > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(descriptor, offset, length)


async def accept_all(journal, most=10_000):
    """Accept calls until the journal rejects one; return their keys."""
    keys = []

    async def accept_next():
        for number in range(most):
            await accept(journal, f"c{number}")
            keys.append(f"c{number}")

    with pytest.raises(JournalUnavailableError, match="disk is full: No space left on device"):
        await accept_next()
    return keys


def on_disk(journal):
    journal.close()
    return sorted(
        line[9:].split(b'"key":"')[1].split(b'"')[0].decode()
        for number in segment_numbers(journal.folder)
        for line in segment_path(journal.folder, number).read_bytes().splitlines()
        if b'"closed"' in line
    )


async def test_on_a_full_disk_new_calls_are_rejected_and_every_end_is_written(open_journal):
    disk = Disk(300_000)
    journal, _ = open_journal(segment_bytes=65536, allocate=disk.allocate)
    keys = await accept_all(journal)
    assert len(keys) > 20
    with pytest.raises(JournalUnavailableError):
        journal.check()
    for key in keys:
        journal.append("progress", key, {"output_tokens": 1})
        journal.append("closed", key, {"error": "x" * 2000})
    assert await asyncio.to_thread(journal.sync, 20)
    path = segment_path(journal.folder, 1)
    assert path.stat().st_size <= disk.room_bytes
    assert on_disk(journal) == sorted(keys)
    assert path.stat().st_size < 300_000, "what it did not need is free again"
    assert open_journal()[1] == [], "no call was left open"


async def test_entries_without_space_wait_in_order(open_journal, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    disk = Disk(200_000)
    journal, _ = open_journal(segment_bytes=65536, allocate=disk.allocate)
    (first, *_) = await accept_all(journal)
    for number in range(100):
        journal.append("interaction", f"r{number}", {"text": "x" * 2000})
    journal.append("closed", first, {})
    assert await asyncio.to_thread(journal.sync, 20)
    runs = [key for kind, key in entries(journal) if kind == "interaction"]
    assert 0 < len(runs) < 100, "those found space that nobody holds"
    assert ("closed", first) in entries(journal)
    disk.room_bytes = None
    await until(lambda: len([1 for kind, _ in entries(journal) if kind == "interaction"]) == 100)
    runs = [key for kind, key in entries(journal) if kind == "interaction"]
    assert runs == [f"r{number}" for number in range(100)]
    await accept(journal, "again")


async def test_marks_without_space_do_not_wait(open_journal, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    disk = Disk(200_000)
    journal, _ = open_journal(segment_bytes=65536, allocate=disk.allocate)
    await accept_all(journal)
    for number in range(100):
        journal.append("interaction", f"r{number}", {"text": "x" * 2000})
        journal.append("mark", f"m{number}", {})
    disk.room_bytes = None
    await until(lambda: ("interaction", "r99") in entries(journal))
    found = [entry for entry in entries(journal) if entry[0] in ("interaction", "mark")]
    waited = found.index(("interaction", "r99")) - 20
    assert ("mark", "m99") not in found, "a mark is behind the rows before it, or nowhere"
    assert all(kind == "interaction" for kind, _ in found[waited:])
    for place, (kind, key) in enumerate(found):
        if kind == "mark":
            rows = {row for what, row in found[:place] if what == "interaction"}
            assert rows >= {f"r{number}" for number in range(int(key[1:]) + 1)}


async def test_a_segment_is_extended_without_space_for_the_next(open_journal):
    disk = Disk(None)
    journal, _ = open_journal(segment_bytes=8192, allocate=disk.allocate)
    keys = [f"c{number}" for number in range(40)]
    for key in keys:
        await accept(journal, key)
    (*_, newest) = segment_numbers(journal.folder)
    disk.room_bytes = 0
    for some in (keys[:20], keys[20:]):
        for key in some:
            journal.append("closed", key, {"error": "x" * 1000})
        assert await asyncio.to_thread(journal.sync, 20)
    assert segment_numbers(journal.folder)[-1] == newest
    assert on_disk(journal) == sorted(keys)


async def test_a_journal_is_read_on_a_full_disk(open_journal):
    journal, _ = open_journal()
    await accept(journal, "left open")
    journal.close()
    journal, left = open_journal(allocate=Disk(0).allocate)
    assert [call.key for call in left] == ["left open"]
    with pytest.raises(JournalUnavailableError, match="disk is full"):
        journal.check()


async def test_preallocated_space_is_no_damage(open_journal, caplog):
    journal, _ = open_journal()
    await accept(journal, "a")
    path = segment_path(journal.folder, 1)
    copy = path.read_bytes()
    journal.close()
    assert len(copy) > 1024 * 1024
    path.write_bytes(copy)  # the state that a killed process leaves
    segment_path(journal.folder, 2).write_bytes(b"")
    _, left = open_journal()
    assert [call.key for call in left] == ["a"]
    assert path.read_bytes() == copy.rstrip(b"\0")
    assert not caplog.records


SCRIPT = """
import asyncio, json, resource, sys
from pathlib import Path
from fairserve.platform.control.journal.journal import Journal, JournalUnavailableError

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

async def main():
    journal = Journal(Path(sys.argv[1]))
    journal.open()
    keys = []
    try:
        while True:
            await journal.durable(journal.append("accepted", f"c{len(keys)}", {}))
            keys.append(f"c{len(keys)}")
    except JournalUnavailableError as error:
        print(error, file=sys.stderr)
    for key in keys:
        journal.append("closed", key, {"error": "x" * 2000})
    await journal.written()
    print(json.dumps(keys), flush=True)
    os._exit(0)  # as if it were killed: what is in memory is lost

import os
asyncio.run(main())
"""


def test_no_end_is_lost_under_a_file_size_limit(tmp_path, open_journal):
    folder = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True, check=True
    )
    keys = json.loads(done.stdout)
    assert "the journal's disk is full: File too large" in done.stderr
    assert len(keys) > 20
    journal, left = open_journal()
    assert left == []
    assert on_disk(journal) == sorted(keys)
