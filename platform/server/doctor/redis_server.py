"""Checks of Redis: whether it answers, and whether servers can share one order of calls through it.

They read the server's INFO, its clock and the time of the cell, and change nothing. Weakness: whether
the user of ``redis_url`` may write the log is seen only by a server that writes it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.server.configuration.checks import role_problems
from fairserve.platform.server.configuration.flags import environment_names
from fairserve.platform.server.doctor.clocks import compared
from fairserve.platform.server.doctor.finding import Finding, fail, ok, warn
from fairserve.platform.server.settings import Settings

TIMEOUT_S = 3.0
NEEDED = (6, 2)
"""First version that has ``XADD`` with ``NOMKSTREAM`` and ``XTRIM`` with ``MINID``."""

Info = Mapping[str, Any]


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Yield whether Redis answers, if it is configured, and whether servers with a role can share it."""
    url, shared = settings.background.redis_url, settings.control.role != "all"
    if shared:
        yield from _check_role(settings)
    if url:
        findings = asyncio.run(redis_findings(url, shared=shared))
        yield from findings
        if shared and all(each.status != "fail" for each in findings):
            yield from _check_past(settings)


async def redis_findings(url: str, *, shared: bool) -> list[Finding]:
    """Return whether the Redis of a URL answers, and if ``shared``, whether servers can share it."""
    try:
        from redis.exceptions import NoPermissionError

        from fairserve.platform.base.redis_client import LOST, redis_client
    except ModuleNotFoundError:
        return [fail("redis", "the client is not installed", "pip install 'fairserve[redis]'")]
    found = []
    try:
        client = redis_client(url, answer_s=TIMEOUT_S, connect_s=TIMEOUT_S)
        try:
            if shared:
                found.append(await _clock(client))
            info = await client.info()
        finally:
            await client.aclose()
    except NoPermissionError:
        problem = warn(
            "redis",
            "it answers, but the user of redis_url may not read its settings",
            "allow this user +info and +time, or run doctor with a user who has them",
        )
        return [*found, problem]
    except (ValueError, *LOST) as error:
        text = " ".join(str(error).split())
        return [*found, fail("redis", f"no answer: {text}", "start Redis, or correct --redis-url")]
    found.append(ok("redis", f"version {info['redis_version']} answers; Celery runs the jobs"))
    return [*found, *shared_findings(info)] if shared else found


def _check_role(settings: Settings) -> Iterator[Finding]:
    """Yield what servers with a role need and these settings lack."""
    problems = role_problems(settings)
    for name, problem in problems.items():
        yield fail("role", problem, f"set {environment_names(name)[0]} on all servers")
    if not problems:
        yield ok("role", f"role is {settings.control.role}; order and database are shared")


def _check_past(settings: Settings) -> Iterator[Finding]:
    """Yield whether database and Redis belong together; nothing if one of them cannot be read."""
    from fairserve.platform.base.redis_client import LOST
    from fairserve.platform.server.noted_time import cell_keys, disagreement_at

    try:
        engine = connect(settings.db.effective_database_url, pool_size=1, create=False)
        try:
            keys, sessions = cell_keys(key_hasher(settings.db).secret_id), session_factory(engine)
            problem = asyncio.run(disagreement_at(settings.background.redis_url, sessions, keys))
        finally:
            engine.dispose()
    except (ValueError, SQLAlchemyError, *LOST):
        return
    if problem:
        yield fail("redis and database", problem, "")
    else:
        yield ok("redis and database", "neither was restored without the other")


async def _clock(client: Any) -> Finding:
    """Compare the clock of Redis, which is the time of the cell, with ours."""
    began_s = time.time()
    seconds, micros = await client.time()
    half_s = (time.time() - began_s) / 2
    return compared("Redis", seconds + micros / 1e6 - began_s - half_s, half_s)


def shared_findings(info: Info) -> Iterator[Finding]:
    """Yield what the INFO of a Redis means for servers that share their order through it."""
    yield _version(str(info["redis_version"]))
    yield _eviction(info)
    yield _persistence(info)
    if info.get("connected_slaves"):
        yield _replicas(info)
    if info.get("role", "master") != "master":
        yield fail(
            "redis primary",
            "this server is a replica, which accepts no writes",
            "name the primary in redis_url",
        )
    if info.get("cluster_enabled"):
        yield fail(
            "redis cluster",
            "this server is a node of a Redis Cluster, whose redirections are not followed",
            "use a Redis without cluster mode",
        )


def _version(version: str) -> Finding:
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    needed = ".".join(map(str, NEEDED))
    if found < NEEDED:
        return fail("redis version", f"{version}; the log needs {needed}", "upgrade Redis")
    return ok("redis version", f"{version}; the log needs {needed}")


def _eviction(info: Info) -> Finding:
    policy, limit = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    found = f"maxmemory-policy is {policy}, maxmemory is {limit:,} bytes"
    if policy == "noeviction":
        return ok("redis eviction", f"{found}; nothing is evicted")
    step = "set maxmemory-policy to noeviction: a full Redis must reject writes, not drop the log"
    return fail("redis eviction", found, step) if limit else warn("redis eviction", found, step)


def _persistence(info: Info) -> Finding:
    check = "redis persistence"
    if not info.get("aof_enabled"):
        return warn(
            check,
            "appendonly is no: a restart of Redis loses the log",
            "set appendonly to yes, so that a restart at the same time as that of control loses no call",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return fail(
            check, "the last write of the append-only file failed", "free space on its disk"
        )
    return ok(check, "the append-only file is written")


def _replicas(info: Info) -> Finding:
    check, copies = "redis replicas", f"{info['connected_slaves']} replicas follow"
    if "min_slaves_good_slaves" in info:
        return ok(check, f"{copies}; without any it rejects writes")
    return warn(
        check,
        f"{copies}, and min-replicas-to-write is 0: what it accepts without them may be lost",
        "set min-replicas-to-write to 1 on all of them, with two replicas or more",
    )
