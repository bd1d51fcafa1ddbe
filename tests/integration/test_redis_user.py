"""The Redis user of the guide may do what the log of a cell needs, and nothing else."""

import asyncio
import re
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError
from redis_process import RedisProcess

from fairserve.platform.background.jobs.celery_jobs import QUEUE, JobsOnCelery
from fairserve.platform.console.sign_in import shared_attempts
from fairserve.platform.control.log.redis_log import PresentEpoch, RedisLog, state_bytes
from fairserve.platform.control.log.shared_cell import EntryId
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.completions import redis_answers

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/scaling.md"
PREFIX = "fairserve:{0123456789abcdef}"
FIRST, LEASE_MS = EntryId(1_000, 0), 5_000
NOT_OF_THE_LOG = {
    "hello",
    "auth",
    "client",
    "client|setinfo",
    "acl",
    "acl|log",
    "config",
    "config|resetstat",
    "info",
}
"""Commands of the connection, which need no permission, and of the operator."""


def rules():
    """Return the rules of the user in the guide: its ACL command, without the name."""
    (text,) = re.findall(r"^ACL SETUSER fairserve (.*?)^```", GUIDE.read_text(), re.M | re.S)
    return text.replace("PASSWORD", "pass").split()


def used_by(client):
    names = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    return names - NOT_OF_THE_LOG


def denied(client):
    """Return what the user was denied, except for the name of the client, which newer servers note."""
    return [each for each in client.acl_log() if each["object"] != "client|setinfo"]


def named_for(what):
    """Return the commands that the table of the guide has for a purpose."""
    section = GUIDE.read_text().split("### A user of its own")[1]
    (listed,) = re.findall(rf"^\| {what} \|[^|]*\| (.+) \|$", section, re.M)
    return set(re.findall(r"`([a-z]+)`", listed))


@pytest.fixture
def server(redis_server, tmp_path):
    """Yield a Redis with the guide's user, its URL for that user, and a client of the operator."""
    server = RedisProcess(tmp_path / "redis")
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL SETUSER fairserve", *rules())
        client.config_resetstat()
        yield server.url.replace("://", "://fairserve:pass@"), client
    server.close()


async def use_everything(log):
    """Begin a cell, write and read its log, begin another epoch, and leave."""
    try:
        await use_log(log)
    finally:
        await log.close()


async def use_log(log):
    assert await log.base() is None
    assert await log.take_lease("p", LEASE_MS)
    assert await log.take_lease("p", LEASE_MS)
    first, state = PresentEpoch(1, 1, {}), state_bytes({"last": str(FIRST)})
    assert await log.begin("p", LEASE_MS, first, FIRST, state, 0)
    assert await log.base() == first
    assert await log.append(1, b"batch") == "written"
    assert await log.say("p", LEASE_MS, 1, b"tick")
    assert await log.answer("p", 1, b"answers")
    await log.announce(2, LEASE_MS)
    assert await log.has_successor(1)
    entries = await log.read(1, FIRST, 1)
    assert [entry.kind for entry in entries] == ["b", "t", "a"]
    last = entries[-1].entry
    assert await log.where(1, last) == "there"
    assert await log.where(1, EntryId(999, 0)) == "trimmed"
    assert await log.stored() == FIRST
    assert await log.store_snapshot(1, state, last, kept_s=3600)
    assert not await log.store_snapshot(1, state, last, kept_s=3600), "it is not later"
    assert await log.snapshot(1) == {"last": str(FIRST)}
    assert await log.ahead("p", last) == last
    await log.note(last.ms)
    assert await log.noted() == last.ms
    assert await log.now_ms() > last.ms - 1
    begins = EntryId(last.ms + 1, 0)
    assert await log.begin("p", LEASE_MS, PresentEpoch(2, 1, {}), begins, state, 1)
    await log.end(2)
    await log.leave("p")


def test_the_log_needs_the_commands_of_the_guide_and_no_other(server):
    url, client = server
    asyncio.run(use_everything(RedisLog(url, PREFIX)))
    assert denied(client) == []
    assert named_for("the log") == used_by(client)


def test_answers_and_sign_ins_need_the_commands_of_the_guide():
    used = {"eval", "hmget", "zrem"}
    for module in (redis_answers, shared_attempts):
        source = Path(module.__file__).read_text()
        used |= {name.lower() for name in re.findall(r"redis\.call\('(\w+)'", source)}
    assert named_for("answers and sign-ins") == used


def test_a_server_may_request_a_job(server, monkeypatch):
    url, client = server
    monkeypatch.setenv("REDIS_URL", url)
    JobsOnCelery(Settings()).request("rollup")
    assert denied(client) == []
    assert named_for("requests for jobs") == used_by(client)
    assert client.llen(QUEUE) == 1


def test_the_user_has_what_the_table_names():
    tables = (
        "the log",
        "answers and sign-ins",
        "requests for jobs",
        "`fairserve doctor`, and each start",
        "Sentinel",
    )
    named = set().union(*map(named_for, tables))
    assert {f"+{name}" for name in named} == {each for each in rules() if each[0] == "+"}


@pytest.mark.parametrize(
    "command", ["GET other", "KEYS *", "FLUSHALL", "CONFIG GET *", "SET other y", "ACL LIST"]
)
def test_the_user_reaches_nothing_else(server, command):
    url, _ = server
    with redis.Redis.from_url(url) as client, pytest.raises(NoPermissionError):
        client.execute_command(command)


@pytest.mark.parametrize("rule", ["+xadd", "+eval", "+time", "~fairserve*"])
def test_a_missing_permission_is_found(server, rule):
    url, client = server
    assert rule in rules()
    rest = [each for each in rules() if each != rule]
    client.execute_command("ACL SETUSER fairserve reset", *rest)
    with pytest.raises(ResponseError, match=r"permission|can't run this command|can't access"):
        asyncio.run(use_everything(RedisLog(url, PREFIX)))
