"""The server runs on PostgreSQL: schema first, rows in it, one server to a database."""

import subprocess
import sys

import psycopg
from gateway_server import ChildServer
from scripted_worker import ScriptedWorker

COMMAND = [sys.executable, "-m", "fairserve.platform.server.cli"]


def test_the_server_on_postgresql(postgres_url, tmp_path):
    worker = ScriptedWorker()
    env = {
        "DATABASE_URL": postgres_url,
        "FAIRSERVE_SECRET_KEY": "x" * 32,
        "FAIRSERVE_DATABASE_LEASE_S": "6",  # the second server waits for the next renewal of the first
        "HF_HUB_OFFLINE": "1",  # no tokenizer exists for the model of scripted workers
    }
    flags = {"worker_urls": worker.url}
    first, second = (
        ChildServer(tmp_path / name, env=env, start=False, **flags) for name in ("first", "second")
    )

    first.launch()
    assert first.process.wait(60) == 2, "a schema that is not there is refused"
    assert "fairserve db upgrade" in first.log()
    subprocess.run([*COMMAND, "db", "upgrade", "--database-url", postgres_url], check=True)

    first.start()
    with first:
        client = first.openai(first.new_app()["api_key"])
        answer = client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "ok"}],
            extra_headers={"X-Interaction-Id": "r", "X-Interaction-Final": "true"},
        )
        client.close()
        assert first.wait_for_usage(calls=1)["output_tokens"] == 3

        second.launch()
        assert second.process.wait(60) == 1
        assert "the database is in use by another FairServe server" in second.log()
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("SELECT outcome, output_tokens FROM ledger_calls").fetchall()
        runs = connection.execute("SELECT state, calls, tokens FROM interactions").fetchall()
    assert rows == [("completed", 3)]
    assert runs == [("complete", 1, answer.usage.total_tokens)]
    second.app_key = first.app_key  # the database has its tenant and app already
    second.start()
    with second:
        assert second.call(second.admin_key, "GET", "/admin/usage")["sums"]["calls"] == 1
    worker.close()
