"""Test ``fairserve usage`` on a database."""

import json

import pytest
from sqlalchemy import text
from usage_histories import calls, runs

from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.server.cli import main


@pytest.fixture
def flags(engine):
    """Return the flags for a database with the schema."""
    return ["--database-url", str(engine.url)]


def test_rollup_report_reconcile_repair(flags, sessions, capsysbinary, tmp_path):
    with sessions.begin() as session:
        upsert_calls(session, calls(1, 100))
        upsert_interactions(session, runs(1, 10))
    assert main(["usage", "rollup", *flags]) == 0
    capsysbinary.readouterr()
    assert main(["usage", "report", "--group-by", "tenant,day", *flags]) == 0
    found = json.loads(capsysbinary.readouterr().out)
    assert found["sums"]["calls"] == sum(call.charged for call in calls(1, 100))
    for format in ("csv", "parquet", "html"):
        out = tmp_path / f"usage.{format}"
        more = ["--format", format, "--out", str(out), "--zone", "Asia/Kolkata", "--tenant", "tn_0"]
        assert main(["usage", "report", "--group-by", "app", *more, *flags]) == 0
        assert out.stat().st_size > 100
    assert main(["usage", "reconcile", *flags]) == 0
    with sessions.begin() as session:
        session.execute(text("UPDATE usage_calls SET calls = calls + 1 WHERE level = 'day_app'"))
    assert main(["usage", "reconcile", "--to", "2026-03-01", *flags]) == 0, "another day"
    capsysbinary.readouterr()
    assert main(["usage", "reconcile", *flags]) == 1
    assert b"usage_calls day_app" in capsysbinary.readouterr().out
    assert main(["usage", "reconcile", "--repair", *flags]) == 1
    assert main(["usage", "reconcile", *flags]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "--zone", "Nowhere"], "report: --zone: there is no such time zone; "),
        (["report", "--group-by", "colour"], "report: --group-by: Input should be 'tenant', "),
        (["report", "--group-by", "day,day"], "report: --group-by: "),
        (["report", "--from", "2026-02-30"], "2026-01-31"),
        (["report", "--from", "2026-02-02", "--to", "2026-02-01"], "--from: from is after to"),
        (["report", "--format", "pdf"], "parquet"),
    ],
)
def test_wrong_usage_prints_one_line(flags, capfd, arguments, message):
    try:
        code = main(["usage", *arguments, *flags])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_database_without_the_schema_is_rejected(tmp_path, capfd):
    assert main(["usage", "rollup", "--data-dir", str(tmp_path)]) == 2
    assert "fairserve db upgrade" in capfd.readouterr().err


def test_a_report_takes_names(flags, sessions, capsys):
    with sessions.begin() as session:
        for tenant in ("tn_1", "tn_2"):
            session.add(Tenant(id=tenant, name=f"team {tenant}", created_at=utc_now()))
        for app, tenant in (("app_1", "tn_1"), ("app_2", "tn_2")):
            more = {"calls_per_interaction": 1, "idle_timeout_s": 1, "created_at": utc_now()}
            session.add(App(id=app, tenant_id=tenant, name="chat", **more))
    found = {}
    for words in (
        ("--tenant", "team tn_2"),
        ("--tenant", "tn_2"),
        ("--tenant", "team tn_2", "--app", "chat"),
    ):
        assert main(["usage", "report", *words, *flags]) == 0
        found[words] = json.loads(capsys.readouterr().out)
    by_name, by_id, _ = found.values()
    assert by_name == by_id
    for words, message in (
        (("--tenant", "team"), "there is no tenant 'team'"),
        (("--app", "chat"), "several objects are an app 'chat': app_1, app_2; name one id"),
    ):
        assert main(["usage", "report", *words, *flags]) == 2
        assert message in capsys.readouterr().err
