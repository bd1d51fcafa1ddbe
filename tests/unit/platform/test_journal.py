"""The journal: what is durable stays, what is torn is cut, and a bad disk refuses new calls only."""

import asyncio
import errno
import os
import threading

import pytest

from fairserve.platform.journal.journal import Journal, JournalUnavailableError
from fairserve.platform.journal.segments import (
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


async def test_calls_that_wait_together_share_syncs(open_journal):
    syncs = []

    def sync(descriptor):
        syncs.append(1)
        os.fdatasync(descriptor)

    journal, _ = open_journal(sync=sync)
    await asyncio.gather(*(accept(journal, f"c{n}") for n in range(200)))
    assert len(syncs) < 200


async def test_what_was_written_outlives_the_process_before_it_is_synced(open_journal):
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


async def test_nobody_waits_for_a_disk_that_cannot_be_written(open_journal):
    journal, _ = open_journal()
    await accept(journal, "a")
    descriptor = journal._writing.descriptor
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)
    journal.append("closed", "a", {})
    await journal.written()


async def test_open_calls_come_back_with_their_last_progress(open_journal):
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


async def test_a_damaged_line_in_the_middle_costs_only_itself(open_journal):
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


async def test_a_full_disk_refuses_new_calls_and_keeps_the_rows_of_old_ones(open_journal):
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
        await accept(journal, "new")  # refused at the sync, and the later ones at once
    with pytest.raises(JournalUnavailableError, match="No space left"):
        await accept(journal, "newer")
    synced = threading.Event()
    journal.subscribe(synced.set)
    broken = False
    assert await asyncio.to_thread(synced.wait, 20)  # the old call's row was kept: tried again
    await accept(journal, "later")
    assert entries(journal) == [("accepted", "old"), ("closed", "old"), ("accepted", "later")]


async def test_it_is_bounded_while_nothing_reaches_the_database(open_journal):
    journal, _ = open_journal(max_bytes=10_000, segment_bytes=4096)

    async def accept_many():
        for n in range(1000):
            await accept(journal, f"c{n}")

    with pytest.raises(JournalUnavailableError, match="not in the database"):
        await accept_many()
    journal.append("closed", "c0", {})  # a call that runs may still end


async def test_segments_go_when_ledgered_and_no_open_call_began_in_them(open_journal):
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
