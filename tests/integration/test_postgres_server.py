"""The server runs on PostgreSQL: schema first, rows in it, and the next server continues with them."""

import sys

import psycopg
from gateway_server import ThreadServer
from scripted_worker import ScriptedWorker

from fairserve.platform.server import cli


def test_the_server_on_postgresql(postgres_url, tmp_path, monkeypatch, capsys):
    worker = ScriptedWorker()
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "x" * 32)
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval_s: None)
    flags = ("--database-url", postgres_url, "--worker-urls", worker.url)
    command = ["serve", *flags, "--data-dir", str(tmp_path / "none"), "--port", "0"]
    assert cli.main(command) == 2, "a schema that is not there is refused"
    assert "fairserve db upgrade" in capsys.readouterr().err
    assert cli.main(["db", "upgrade", "--database-url", postgres_url]) == 0

    with ThreadServer(tmp_path / "first", *flags) as first:
        answer = first.openai().chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "ok"}],
            extra_headers={"X-Interaction-Id": "r", "X-Interaction-Final": "true"},
        )
        assert first.wait_for_usage(calls=1)["output_tokens"] == 3
        assert first.stop() == 0
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("SELECT outcome, output_tokens FROM ledger_calls").fetchall()
        runs = connection.execute("SELECT state, calls, tokens FROM interactions").fetchall()
    assert rows == [("completed", 3)]
    assert runs == [("complete", 1, answer.usage.total_tokens)]

    second = ThreadServer(tmp_path / "second", *flags, start=False)
    second.app_key = first.app_key  # the database has its tenant and app already
    with second:
        second.start()
        assert second.call(second.admin_key, "GET", "/admin/usage")["sums"]["calls"] == 1
    worker.close()
