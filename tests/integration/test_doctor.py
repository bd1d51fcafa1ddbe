"""The doctor names what keeps a server from working here, and changes nothing."""

import json
import os

import pytest
import redis
from databases import ON_POSTGRESQL
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from whole_server import WholeServer

from fairserve.platform.db.engine import connect
from fairserve.platform.db.schema import downgrade
from fairserve.platform.server import cli
from fairserve.platform.server.doctor import host
from fairserve.platform.server.doctor.clocks import compared
from fairserve.platform.server.doctor.redis_server import shared_findings

CONFIG = """
data_dir: {folder}
{more}
fleet:
  workers:
    - {{id: a, url: "{url}", model: scripted}}
"""


@pytest.fixture
def doctor(capsys):
    """Return a function that returns the exit code, and the findings by name."""

    def run(*flags):
        code = cli.main(["doctor", "--json", *map(str, flags)])
        report = json.loads(capsys.readouterr().out)
        assert report["failed"] is (code == 1)
        return code, {each["check"]: each for each in report["checks"]}

    return run


def statuses(findings):
    return {name: each["status"] for name, each in findings.items()}


def state_of(folder):
    """Return all files with their times."""
    return {path: os.stat(path).st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_healthy_server(tmp_path, doctor, capsys):
    folder, config = tmp_path / "data", tmp_path / "fairserve.yaml"
    with WholeServer(folder) as server:
        config.write_text(CONFIG.format(folder=folder, url=server.worker.url, more=""))
        code, found = doctor("--config", config)
        assert code == 0
        assert statuses(found) == {
            "settings": "ok",
            "database": "ok",
            "schema": "ok",
            "server": "ok",
            "secret key": "ok",
            "ledger": "ok",
            "journal": "ok",
            "private files": "ok",
            "open files": "ok",
            "worker a": "ok",
            "clock of worker a": "ok",
            "tokenizer of scripted": "warn",
        }
        assert cli.main(["doctor", "--config", str(config)]) == 0
        out = capsys.readouterr().out
        assert out.count("\n") == len(found)
        assert f"\nok    secret key: {folder}/secret.key matches the database\n" in out


def test_each_failure_is_found(tmp_path, doctor, monkeypatch):
    folder, config = tmp_path / "data", tmp_path / "fairserve.yaml"
    with WholeServer(folder) as server:
        pass
    (folder / "secret.key").write_text("y" * 50)
    config.write_text(
        CONFIG.format(folder=folder, url=server.worker.url, more=f"admin_key: {'s' * 40}")
    )
    config.chmod(0o644)
    (folder / "fairserve.sqlite3").chmod(0o640)
    (folder / "journal" / "rejected.jsonl").write_text('{"kind": "closed", "data": {}}\n')
    monkeypatch.setattr(host, "descriptor_limit", lambda: 1024)
    before = state_of(folder)
    code, found = doctor("--config", config, "--redis-url", "redis://:hunter2@127.0.0.1:9/0")
    assert code == 1
    assert state_of(folder) == before, "it changes nothing"
    assert statuses(found) == {
        "settings": "warn",
        "database": "ok",
        "schema": "ok",
        "server": "ok",
        "secret key": "fail",
        "ledger": "warn",
        "journal": "ok",
        "private files": "warn",
        "redis": "fail",
        "open files": "warn",
        "worker a": "fail",
    }
    assert found["settings"]["help"] == f"run chmod 600 {config}"
    assert found["private files"]["found"] == f"others can read {folder}/fairserve.sqlite3"
    assert "for 384 client connections" in found["open files"]["found"]
    assert "hunter2" not in str(found)
    engine = connect(f"sqlite:///{folder / 'fairserve.sqlite3'}")
    downgrade(engine, "base")
    engine.dispose()
    assert "run `fairserve db upgrade`" in doctor("--config", config)[1]["schema"]["found"]


def test_folders_and_settings_that_cannot_work(tmp_path, doctor):
    found = doctor("--data-dir", "/proc/nothing", "--workers", "0")[1]
    assert statuses(found)["journal"] == "fail"
    assert statuses(found)["database"] == "warn"
    assert statuses(found)["fleet"] == "warn"
    (tmp_path / "restore.incomplete").mkdir()
    found = doctor("--data-dir", tmp_path)[1]
    assert "was interrupted" in found["data folder"]["found"]
    code, found = doctor("--port", "x")
    assert (code, statuses(found)) == (1, {"settings": "fail"})


@ON_POSTGRESQL
def test_postgresql_and_redis(new_postgres_url, database, redis_url, tmp_path, doctor, monkeypatch):
    worker = ScriptedWorker(tokenizes=True)
    flags = ["--data-dir", tmp_path, "--worker-urls", worker.url]
    monkeypatch.setenv("DATABASE_URL", new_postgres_url())
    monkeypatch.setenv("REDIS_URL", redis_url)
    code, found = doctor(*flags)
    assert (code, statuses(found)["secret key"]) == (1, "fail")
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "k" * 40)
    code, found = doctor(*flags)
    assert (code, set(statuses(found).values())) == (0, {"ok"})
    assert "equal to ours within" in found["clock of the database"]["found"]
    assert "Celery runs the jobs" in found["redis"]["found"]
    assert "its workers count prompts" in found["tokenizer of scripted"]["found"]
    assert list(tmp_path.iterdir()) == []
    worker.close()


# --- a Redis that servers share -------------------------------------------------------------------


@pytest.fixture
def own_redis(redis_server, tmp_path):
    """Yield a Redis whose settings the test changes, with its URL, and a client of it."""
    server = RedisProcess(tmp_path / "redis", keeps=True)
    with redis.Redis(port=server.port) as client:
        yield server, client
    server.close()


@pytest.fixture
def shared(doctor, tmp_path, monkeypatch):
    """Return a function that returns the findings for a server with a role; its database is away."""
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "k" * 40)
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:9/nothing?connect_timeout=2")

    def run(url, *flags, role="api"):
        given = ["--data-dir", tmp_path, "--worker-urls", "http://127.0.0.1:9", "--role", role]
        return doctor(*given, "--redis-url", url, *flags)[1]

    return run


def redis_rows(found):
    return {name: s for name, s in statuses(found).items() if "edis" in name or name == "role"}


def test_a_redis_that_servers_can_share(own_redis, shared):
    server, client = own_redis
    client.set("a", "b")
    before = client.info("commandstats")
    found = shared(server.url, role="control")
    assert redis_rows(found) == dict.fromkeys(
        ("role", "clock of Redis", "redis", "redis version", "redis eviction", "redis persistence"),
        "ok",
    )
    assert found["role"]["found"] == "role is control; order and database are shared"
    used = {name for name, of in client.info("commandstats").items() if of != before.get(name)}
    reads = {"cmdstat_info", "cmdstat_time", "cmdstat_get"}
    assert used <= {*reads, "cmdstat_client|setinfo", "cmdstat_hello"}, "it changes nothing"
    assert set(redis_rows(shared(server.url, role="all"))) == {"redis"}


def test_an_unsafe_redis(own_redis, shared):
    server, client = own_redis
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    found = shared(server.url)
    assert found["redis eviction"]["status"] == "warn", "without a bound nothing is evicted yet"
    assert found["redis persistence"]["status"] == "warn"
    assert found["redis persistence"]["help"].startswith("set appendonly to yes")
    client.config_set("maxmemory", "100mb")
    eviction = shared(server.url)["redis eviction"]
    assert eviction["status"] == "fail"
    assert eviction["found"] == "maxmemory-policy is allkeys-lru, maxmemory is 104,857,600 bytes"
    assert eviction["help"].startswith("set maxmemory-policy to noeviction")
    client.replicaof("127.0.0.1", 9)
    assert redis_rows(shared(server.url))["redis primary"] == "fail"


def test_a_user_who_may_not_read_the_settings_of_redis(own_redis, shared):
    server, client = own_redis
    client.acl_setuser("fairserve", enabled=True, passwords=["+pass"], commands=["+ping", "+time"])
    url = server.url.replace("://", "://fairserve:pass@")
    found = shared(url)
    assert redis_rows(found) == {"role": "ok", "clock of Redis": "ok", "redis": "warn"}
    assert "+info" in found["redis"]["help"]
    assert redis_rows(shared(url.replace(":pass@", ":other@")))["redis"] == "fail"


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        ({"redis_version": "6.0.16"}, "redis version", "6.0.16; the log needs 6.2"),
        ({"aof_last_write_status": "err"}, "redis persistence", "last write"),
        ({"cluster_enabled": 1}, "redis cluster", "Redis Cluster"),
        ({"connected_slaves": 2}, "redis replicas", "min-replicas-to-write is 0"),
    ],
)
def test_what_a_redis_reports(own_redis, change, check, text):
    info = own_redis[1].info()
    assert {each.status for each in shared_findings(info)} == {"ok"}
    found = {each.check: each for each in shared_findings({**info, **change})}
    assert found[check].status == ("warn" if check == "redis replicas" else "fail")
    assert text in found[check].found
    assert found[check].help


def test_a_role_needs_a_redis_and_a_database_of_all_servers(shared, monkeypatch):
    found = shared("")
    assert redis_rows(found) == {"role": "fail"}
    assert found["role"]["help"] == "set FAIRSERVE_REDIS_URL on all servers"
    monkeypatch.delenv("DATABASE_URL")
    found = shared("redis://127.0.0.1:9/0")
    assert redis_rows(found) == {"role": "fail", "redis": "fail"}
    assert "PostgreSQL" in found["role"]["found"]
    assert found["role"]["help"] == "set FAIRSERVE_DATABASE_URL on all servers"


@pytest.mark.parametrize(
    ("skew_s", "status", "text"),
    [
        (0.4, "ok", "equal to ours within 1.0 s"),
        (-5.9, "ok", "5.9 s behind ours"),
        (6.1, "warn", "6.1 s ahead of ours (allowed: 5 s)"),
        (-62.0, "fail", "62.0 s behind ours"),
    ],
)
def test_clocks(skew_s, status, text):
    finding = compared("worker a", skew_s, 1.0)
    assert finding.status == status
    assert text in finding.found
