"""A database or a Redis that was restored without the other is noticed before its cell continues."""

import asyncio

import psycopg
import pytest
import redis
from processes import eventually
from scripted_worker import ScriptedWorker
from shared_servers import SECRET, SharedServers
from until import until

from fairserve.platform.control.log.redis_log import RedisLog
from fairserve.platform.db.cell_time import cell_time_ms, note_cell_time
from fairserve.platform.server import cli
from fairserve.platform.server.noted_time import APART_MS, NotedTime, disagreement
from fairserve.platform.server.recovery import end_cell

NOW_MS = 1_800_000_000_000
KEYS = "fairserve:{0123456789abcdef}"


@pytest.mark.parametrize(
    ("in_database", "in_redis", "cause"),
    [
        (None, None, ""),
        (NOW_MS, None, ""),
        (NOW_MS, NOW_MS, ""),
        (NOW_MS + APART_MS, NOW_MS, ""),
        (
            NOW_MS + APART_MS + 1,
            NOW_MS,
            "2027-01-15 08:01:00 UTC in the database: Redis was restored",
        ),
        (NOW_MS - 1, NOW_MS, "the database was restored"),
        (None, NOW_MS, "none in the database: the database was restored, is another one"),
    ],
)
def test_times_that_disagree(in_database, in_redis, cause):
    problem = disagreement(in_database, in_redis, KEYS)
    assert cause in problem
    assert bool(problem) is bool(cause)
    assert not problem or f"delete the keys {KEYS}:* in Redis" in problem


class NotingLog(RedisLog):
    """A log with the times that were noted in it."""

    def __init__(self, url):
        super().__init__(url, KEYS)
        self.notes = []

    async def note(self, at_ms):
        await super().note(at_ms)
        self.notes.append(at_ms)


async def test_the_speaker_reports_a_database_that_is_restored_under_it(
    sessions, redis_url, caplog
):
    log, at_ms = NotingLog(redis_url), [NOW_MS]
    noted = NotedTime(sessions, log, KEYS, now_ms=lambda: at_ms[0], speaks=lambda: True)
    running = asyncio.create_task(noted.run())

    async def notes(now_ms):
        at_ms[0] = now_ms
        noted.begin()
        await until(lambda: log.notes[-1:] == [now_ms])
        assert await log.noted() == now_ms
        with sessions() as session:
            assert cell_time_ms(session) == now_ms

    await notes(NOW_MS)
    await notes(NOW_MS + 1)
    assert not caplog.records
    with sessions.begin() as session:
        note_cell_time(session, NOW_MS)
    await notes(NOW_MS + 2)
    assert "the database was restored" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await log.close()


async def test_a_process_that_does_not_speak_notes_nothing(sessions, redis_url):
    log, asked = RedisLog(redis_url, KEYS), []
    noted = NotedTime(
        sessions, log, KEYS, now_ms=lambda: NOW_MS, speaks=lambda: bool(asked.append(1))
    )
    running = asyncio.create_task(noted.run())
    noted.begin()
    await until(lambda: asked)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await log.noted() is None
    await log.close()


def test_a_server_that_decides_alone_deletes_the_time(sessions):
    with sessions.begin() as session:
        note_cell_time(session, NOW_MS)
    end_cell(sessions)
    with sessions() as session:
        assert cell_time_ms(session) is None


def test_no_server_continues_a_cell_of_another_past(
    tmp_path, new_postgres_url, redis_url, monkeypatch, capsys
):
    worker, database_url = ScriptedWorker(), new_postgres_url()
    servers = SharedServers(tmp_path, database_url, redis_url, worker.url)
    for name, value in servers.env.items():
        monkeypatch.setenv(name, value)
    flags = ["--role", "control", "--data-dir", str(tmp_path / "control")]

    def doctor():
        cli.main(["doctor", *flags, "--worker-urls", worker.url])
        (line,) = [
            each for each in capsys.readouterr().out.splitlines() if "redis and data" in each
        ]
        return line

    def rejected(role):
        (server,) = servers.launch(rejected=role).values()
        assert server.process.wait(120) == 1
        return server.log().splitlines()[-1]

    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        servers.start(control="control")
        [key] = eventually(lambda: client.keys("fairserve:*:noted"))
        assert doctor() == "ok    redis and database: neither was restored without the other"
        assert servers["control"].stop() == 0

        earlier = int(client.get(key)) - 1
        with psycopg.connect(database_url) as connection:
            query = "UPDATE installation_facts SET value = %s WHERE name = 'cell_time_ms'"
            connection.execute(query, (str(earlier),))
        assert "the database was restored" in doctor()
        for role in ("control", "api"):
            message = rejected(role)
            assert message.startswith("fairserve: the latest time of the cell is 20")
        keys = key.removesuffix(":noted")
        assert f"delete the keys {keys}:* in Redis" in message

        client.delete(*client.keys(f"{keys}:*"))
        servers.start(control="control")
        assert servers["control"].stop() == 0
    servers.close()
    worker.close()
    assert SECRET not in message
