"""The ledger writes every row to the database, whatever fails in between."""

import asyncio
import json
from dataclasses import asdict

import pytest
from call_records import call_record
from until import until

from fairserve.platform.control import ledger as ledger_module
from fairserve.platform.control import rejected_rows
from fairserve.platform.control.journal.entries import JournalEntry
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.messages import InteractionRecord
from fairserve.platform.control.rejected_rows import count_rejected

RUN = InteractionRecord("r", "t", "a", "u", "complete", 1.0, 2.0, 1, 10, 0)


class Database:
    """A sink that upserts into dictionaries, and fails or rejects a row on demand."""

    def __init__(self):
        self.calls = {}
        self.writes = 0
        self.away = False
        self.refused = set()

    def blames_rows(self, error):
        return isinstance(error, ValueError) and not self.away

    def write(self, rows):
        if self.away:
            raise ConnectionError("the database is away")
        bad = [call for call in rows.calls if call.call_id in self.refused]
        if bad:
            raise ValueError(f"row {bad[0].call_id} is refused")
        self.writes += 1
        self.calls.update({call.call_id: call for call in rows.calls})


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def start(tmp_path, database):
    opened = []

    def make(**options):
        journal = Journal(tmp_path, **options)
        journal.open()
        ledger = Ledger(journal, database, retry_s=0.01)
        ledger.start()
        opened.append((journal, ledger))
        return journal, ledger

    yield make
    for journal, ledger in opened:
        ledger.close(0)
        journal.close()


def record(call_id, **more):
    values = {"outcome": "completed", "accepted_at": 1.0, "ended_at": 2.0, **more}
    return call_record(call_id, **values)


async def write(journal, *records):
    """Accept and close calls; the accepted entry of a last call makes all of it durable."""
    for each in records:
        journal.append("accepted", each.call_id, {})
        journal.append("closed", each.call_id, asdict(each))
    await journal.durable(journal.append("accepted", f"after {records[-1].call_id}", {}))


async def test_rows_are_written(start, database):
    journal, ledger = start()
    await write(journal, *(record(f"c{n}") for n in range(1200)))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert set(database.calls) == {f"c{n}" for n in range(1200)}
    assert database.writes < 1200


async def test_who_waits_for_a_busy_ledger_does_not_wait_for_its_pause(
    start, database, monkeypatch
):
    monkeypatch.setattr(ledger_module, "BUSY_S", 3600)
    journal, ledger = start()
    await write(journal, *(record(f"a{n}") for n in range(20)))
    assert await asyncio.to_thread(ledger.flush, 20)
    await write(journal, record("b"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert "b" in database.calls


async def test_a_database_outage_loses_nothing(start, database):
    journal, ledger = start()
    database.away = True
    await write(journal, record("a"), record("b"))
    assert not await asyncio.to_thread(ledger.flush, 0.1)
    database.away = False
    assert await asyncio.to_thread(ledger.flush, 20)
    assert set(database.calls) == {"a", "b"}


async def test_the_next_start_continues_where_this_one_stopped(start, database):
    journal, ledger = start()
    await write(journal, record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    database.away = True
    await write(journal, record("b"))
    await until(lambda: ledger.waits_since_s is not None)  # the ledger holds the batch with b
    assert not await asyncio.to_thread(ledger.close, 0.05)
    journal.close()
    database.away = False
    before = database.writes
    journal, ledger = start()
    assert await asyncio.to_thread(ledger.flush, 20)
    assert set(database.calls) == {"a", "b"}
    assert database.writes == before + 1, "a is not written again"


async def test_a_row_written_again_replaces_the_first(start, database):
    journal, ledger = start()
    await write(journal, record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    await write(journal, record("b"), record("a", charged=False))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert database.calls["a"].charged is False


async def test_the_last_row_of_an_id_in_a_batch_is_written(start, database):
    journal, ledger = start()
    await asyncio.to_thread(ledger.close, 5)
    await write(journal, record("a", outcome="failed"), record("a", outcome="completed"))
    journal.close()
    _, ledger = start()
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (database.writes, database.calls["a"].outcome) == (1, "completed")


async def test_rejected_rows_are_set_aside_and_the_others_written(start, database):
    journal, ledger = start()
    await asyncio.to_thread(ledger.close, 5)
    database.refused = {"c17", "c400"}
    await write(journal, *(record(f"c{n}") for n in range(500)))
    journal.close()
    journal, ledger = start()
    assert await asyncio.to_thread(ledger.flush, 20)
    assert set(database.calls) == {f"c{n}" for n in range(500)} - database.refused
    kept = map(json.loads, (journal.folder / "rejected.jsonl").read_bytes().splitlines())
    assert {each["data"]["call_id"]: each["reason"] for each in kept} == {
        name: f"ValueError: row {name} is refused" for name in database.refused
    }
    assert database.writes < 40, "a bad row does not make each other row a transaction"


async def test_rejected_rows_are_counted_again_after_a_restart_and_kept_once(start, database):
    journal, ledger = start()
    database.refused = {"bad"}
    await write(journal, record("bad"), record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert ledger.rejected_rows == 1
    ledger.close()
    journal.close()
    (journal.folder / "ledger.json").unlink()  # as after a restart of the machine
    with (journal.folder / "rejected.jsonl").open("ab") as file:
        file.write(b'{"kind":"clo')  # a crash has cut the last line
    journal, ledger = start()
    assert ledger.rejected_rows == 1
    database.refused = {"bad", "worse"}
    await write(journal, record("worse"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert ledger.rejected_rows == 2
    ledger.close()
    journal.close()
    _, ledger = start()
    assert ledger.rejected_rows == 2


async def test_rejected_rows_beyond_the_bound_of_the_file_are_counted(start, database, monkeypatch):
    monkeypatch.setattr(rejected_rows, "MAX_BYTES", 4000)
    journal, ledger = start()
    database.refused = {f"bad{n}" for n in range(40)}
    await write(journal, record("a"), *(record(name) for name in sorted(database.refused)))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert ledger.rejected_rows == 40
    file = journal.folder / "rejected.jsonl"
    assert 2000 < file.stat().st_size < 4100
    ledger.close()
    journal.close()
    journal, ledger = start()
    assert ledger.rejected_rows == 40
    database.refused |= {"worse"}
    await write(journal, record("worse"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (ledger.rejected_rows, count_rejected(journal.folder)) == (41, 41)
    assert file.stat().st_size < 4100
    file.rename(file.with_suffix(".read"))
    database.refused |= {"worst"}
    await write(journal, record("worst"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (ledger.rejected_rows, count_rejected(journal.folder)) == (1, 1)
    await write(journal, record("bad1"), record("bad2"))
    assert await asyncio.to_thread(ledger.flush, 20)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]))
    await write(journal, record("bad3"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (ledger.rejected_rows, count_rejected(journal.folder)) == (3, 3)


@pytest.mark.parametrize(
    "entry",
    [
        JournalEntry("closed", "damaged", {"call_id": "damaged"}),
        JournalEntry("closed", ["damaged"], {}),
        JournalEntry("closed", "damaged", ["damaged"]),
        JournalEntry("interaction", "damaged", {**asdict(RUN), "app": ["damaged"]}),
    ],
    ids=["fields missing", "key", "data", "id"],
)
async def test_a_damaged_entry_is_set_aside(start, database, entry):
    journal, ledger = start()
    journal.append(entry.kind, entry.key, entry.data)
    await write(journal, record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (set(database.calls), ledger.rejected_rows) == ({"a"}, 1)


async def test_a_row_that_cannot_be_set_aside_is_retried(start, database):
    journal, ledger = start()
    database.refused = {"bad"}
    blocked = journal.folder / "rejected.jsonl"
    blocked.mkdir()
    await write(journal, record("bad"), record("a"))
    assert not await asyncio.to_thread(ledger.flush, 0.1)
    blocked.rmdir()
    assert await asyncio.to_thread(ledger.flush, 20)
    assert (set(database.calls), ledger.rejected_rows) == ({"a"}, 1)


async def test_numbers_beyond_64_bits_are_cut_before_they_are_rows(start, database):
    journal, ledger = start()
    await write(journal, record("huge", cost=10**30, output_tokens=-(10**30)))
    assert await asyncio.to_thread(ledger.flush, 20)
    row = database.calls["huge"]
    assert (row.cost, row.output_tokens) == (2**63 - 1, -(2**63 - 1))


async def test_written_segments_are_deleted(start, database):
    journal, ledger = start(segment_bytes=4096)
    for n in range(60):
        await write(journal, record(f"c{n}"))
        journal.append("closed", f"after c{n}", asdict(record(f"after c{n}")))
    await write(journal, record("last"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert len(list(journal.folder.glob("journal-*"))) <= 3


async def test_after_a_restart_of_the_machine_the_journal_is_written_again(start, database):
    """The database may have lost its last commits."""
    journal, ledger = start()
    await write(journal, record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    ledger.close()
    journal.close()
    database.calls.clear()
    state = journal.folder / "ledger.json"
    plain = json.loads(state.read_bytes())
    state.write_text(json.dumps({**plain, "boot": "another"}))
    _, ledger = start()
    assert await asyncio.to_thread(ledger.flush, 20)
    assert "a" in database.calls


async def test_a_position_from_an_emptied_folder_is_ignored(start, database):
    journal, ledger = start()
    await write(journal, record("a"))
    assert await asyncio.to_thread(ledger.flush, 20)
    ledger.close()
    journal.close()
    for path in journal.folder.glob("journal-*"):
        path.unlink()
    plain = json.loads((journal.folder / "ledger.json").read_bytes())
    (journal.folder / "ledger.json").write_text(json.dumps({**plain, "segment": 99}))
    journal, ledger = start()
    await write(journal, record("b"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert "b" in database.calls
