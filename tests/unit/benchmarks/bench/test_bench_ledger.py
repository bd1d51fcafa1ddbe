"""The benchmark of the ledger measures rows that are really written and rolled up."""

import json

import pytest
from sqlalchemy import func, select

from fairserve.benchmarks.bench import ledger
from fairserve.benchmarks.bench.figures_command import FiguresOptions
from fairserve.benchmarks.bench.ledger_rows import BATCH_CALLS, LedgerBatches, Rollup
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction
from fairserve.platform.db.usage import UsageCalls

TINY = 0.002


def count(database, table, *where):
    with database.sessions() as session:
        return session.scalar(select(func.count()).select_from(table).where(*where))


def test_the_document_contains_every_figure(tmp_path):
    path = tmp_path / "out.json"
    ledger.command.measure(FiguresOptions(json=path, rounds=2), scale=TINY)
    document = json.loads(path.read_text())
    names = [figure["name"] for figure in document["figures"]]
    assert names == ["ledger_us_per_call", "rollup_us_per_call"]
    assert all(figure["value"] > 0 for figure in document["figures"])


def test_a_round_writes_a_row_for_each_call_and_run():
    batches = LedgerBatches(10, 2)
    batches.round()
    for table in (LedgerCall, LedgerInteraction):
        assert count(batches._database, table) == 10 + 2 * BATCH_CALLS


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_round_rolls_all_calls_up(rounds):
    rollup = Rollup(120)
    for _ in range(rounds):
        rollup.round()
    with rollup._database.sessions() as session:
        rolled_up = session.scalar(
            select(func.sum(UsageCalls.calls)).where(UsageCalls.level == "quarter_tenant")
        )
    assert rolled_up == 120
