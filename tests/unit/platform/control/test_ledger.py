"""The ledger writes every row to the database, whatever fails in between."""

import asyncio
import json
from dataclasses import asdict

import pytest
from call_records import call_record
from until import until

from fairserve.platform.control import ledger as ledger_module
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger


class Database:
    """A sink that upserts into dictionaries, and fails or rejects a row on demand."""

    def __init__(self):
        self.calls = {}
        self.writes = 0
        self.away = False
        self.refused = set()

    def upsert(self, rows):
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
        ledger = Ledger(journal, database.upsert, poison=(ValueError,), retry_s=0.01)
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


async def test_a_rejected_row_is_set_aside_and_the_others_written(start, database):
    journal, ledger = start()
    database.refused = {"bad"}
    await write(journal, record("a"), record("bad"), record("z"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert set(database.calls) == {"a", "z"}
    assert b'"call_id":"bad"' in (journal.folder / "rejected.jsonl").read_bytes()


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
