"""A simulation is written into a ledger, one row a call, idempotently, with errors reported."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from fairserve.benchmarks.commands import simulate as main
from fairserve.platform.db.contracts import Price
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.schema import upgrade

BEGIN = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
def trace(tmp_path):
    """Write twelve runs of two calls each, of two users, close together."""
    path = tmp_path / "two.jsonl"
    lines = [
        {
            "iid": f"r{number}",
            "tenant": "acme",
            "app": "chat",
            "user": f"u{number % 2}",
            "arrival_s": number * 0.5,
            "bs": 16,
            "scope": "session",
            "calls": [
                {"id": "a", "agent": "x", "deps": [], "gap": 0, "in": 30, "out": 8, "blk": []},
                {"id": "b", "agent": "y", "deps": ["a"], "gap": 1, "in": 50, "out": 4, "blk": []},
            ],
        }
        for number in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def ledger(tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'ledger.sqlite3'}")
    upgrade(engine)
    yield session_factory(engine)
    engine.dispose()


def simulate(trace, sessions, *more):
    url = str(sessions.kw["bind"].url)
    begin = ["--ledger-begin", BEGIN.isoformat()]
    return main(["--trace", str(trace), "--ledger", url, *begin, *more])


def test_every_call_and_run_has_one_row_even_if_repeated(trace, ledger):
    price = Price(
        id="price_1",
        model="*",
        valid_from=BEGIN + timedelta(seconds=3),
        input_tokens=1_000_000,
        cached_tokens=0,
        output_tokens=2_000_000,
        author="test",
        created_at=BEGIN,
    )
    with ledger.begin() as session:
        session.add(price)
    for _ in range(2):
        assert simulate(trace, ledger) == 0
        with ledger() as session:
            rows = session.scalars(select(LedgerCall)).all()
            runs = session.scalars(select(LedgerInteraction)).all()
        assert len(rows) == 24
        assert {(run.state, run.calls, run.tokens) for run in runs} == {("complete", 2, 92)}
    assert len(runs) == 12
    for row in rows:
        assert (row.tenant_id, row.app_id, row.outcome) == ("acme", "chat", "completed")
        assert BEGIN <= row.accepted_at < row.ended_at
        priced = row.accepted_at >= price.valid_from
        expected = (row.extend_tokens + 2 * row.output_tokens) * 1000
        assert (row.cost, row.price_id) == ((expected, "price_1") if priced else (0, None))
    assert {row.cost > 0 for row in rows} == {True, False}
    second = next(row for row in rows if row.agent == "y")
    assert len(second.parents) == 1


def test_rejections_are_rows_with_their_reason(trace, ledger):
    assert simulate(trace, ledger, "--system", "rpm-2") == 0
    with ledger() as session:
        rejected = session.scalar(
            select(func.count()).select_from(LedgerCall).where(LedgerCall.outcome == "refused")
        )
        events = session.scalars(select(ThrottlingEvent)).all()
        states = set(session.scalars(select(LedgerInteraction.state)))
    assert rejected == len(events) > 0
    assert {(event.reason, event.limit_count) for event in events} == {("rpm_user_limit", 2)}
    assert any(event.mid_run for event in events)
    assert "aborted" in states


def test_ledger_errors_are_reported_before_the_simulation(trace, ledger, capsys):
    assert simulate(trace, ledger, "--system", "fcfs", "vtc") == 2
    assert "the rows of one system" in capsys.readouterr().err
    assert main(["--trace", str(trace), "--ledger", "postgresql://127.0.0.1:1/none"]) == 2
    assert "--ledger: connection failed" in capsys.readouterr().err
    begin = ["--ledger-begin", "2026-01-31"]
    assert main(["--trace", str(trace), "--ledger", "sqlite:///x", *begin]) == 2
    assert "has no zone" in capsys.readouterr().err
