"""Four API servers with two control servers give the shares and the limits of one server.

Routers that each order only their own calls do not: in dynamo#15187 two of them turn 4:1 into 163:162.
"""

import asyncio
import contextlib
from collections import Counter
from itertools import accumulate, cycle

import httpx
from gateway_server import ThreadServer
from processes import eventually
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from shared_servers import SharedServers

WEIGHT = 4
"""Weight of the heavy user; the light one has 1."""
CALLS = {"heavy": 220, "light": 70, "rate": 12, "parallel": 12}
"""Calls of two users of one app, and of two apps with limits."""
LIMITS = {"rate": {"rpm_limit": 7}, "parallel": {"max_parallel_requests": 5}}
ACCEPTED = CALLS | {"rate": 7, "parallel": 5}
SHARED = 250
"""Calls of the two users that are served while both have calls that wait: one call more or less leaves
their ratio above 3.9."""
INGRESS = {"heavy": "0001002300", "light": "3332313033", "rate": "1121", "parallel": "2023"}
"""Servers that the calls of each client reach in turn."""


def body(text, user):
    system = {"role": "system", "content": "more than half of the memory " * 12}
    messages = [system, {"role": "user", "content": text}]
    return {"model": "scripted", "messages": messages, "max_tokens": 20, "user": user}


async def served(servers, worker):
    """Send calls that all wait for a worker with memory for one call.

    Return the clients of those that were served, in their order, and the codes of all by client.
    """
    first, codes = servers[0], {name: Counter() for name in CALLS}
    tenant = first.new_tenant("one tenant")
    weighted = first.new_app(tenant, "weighted")
    first.call(first.admin_key, "PUT", f"/admin/users/{tenant['id']}/heavy", {"weight": WEIGHT})
    apps = {name: first.new_app(tenant, name, contract=limits) for name, limits in LIMITS.items()}
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(timeout=300, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):

        async def send(server, text, name):
            key = apps.get(name, weighted)["api_key"]
            url, headers = f"{server.url}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
            answer = await client.post(url, json=body(text, name), headers=headers)
            codes[name][answer.status_code] += 1

        group.create_task(send(first, "hold", "light"))
        await asyncio.to_thread(eventually, lambda: worker.holding)
        for name, number in CALLS.items():
            for _, place in zip(range(number), cycle(INGRESS[name]), strict=False):
                group.create_task(send(servers[int(place) % len(servers)], f"ok {name}", name))

        def waiting():
            return [each.cluster()["queued_calls"] for each in servers]

        expected = [sum(ACCEPTED.values())] * len(servers)
        await asyncio.to_thread(eventually, lambda: waiting() == expected, lambda: str(waiting()))
        worker.release()
    return [text.split()[1] for text in worker.texts[1:]], codes


async def served_by_one(folder):
    with (
        contextlib.closing(ScriptedWorker(kv_blocks=8)) as worker,
        ThreadServer(folder, worker_urls=worker.url) as server,
    ):
        return await served([server], worker)


async def served_by_four(folder, database_url):
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(contextlib.closing(ScriptedWorker(kv_blocks=8)))
        redis = stack.enter_context(contextlib.closing(RedisProcess(folder / "redis")))
        servers = SharedServers(folder, database_url, redis.url, worker.url)
        stack.enter_context(contextlib.closing(servers))
        names = ("first", "second", "third", "fourth")
        servers.start(control="control", standby="control", **dict.fromkeys(names, "api"))
        return await served([servers[name] for name in names], worker)


def counts(order, name):
    """Return how many calls of a client are among the first calls that were served, for each number."""
    return [*accumulate(each == name for each in order)]


async def test_four_servers_with_skewed_clients_equal_one(tmp_path, new_postgres_url, redis_server):
    alone, codes_alone = await served_by_one(tmp_path / "one")
    order, codes = await served_by_four(tmp_path, new_postgres_url())
    users = [name for name in order if name not in LIMITS][:SHARED]
    heavy, light = users.count("heavy"), users.count("light")
    assert heavy >= 3.9 * light, (heavy, light)
    for name in CALLS:
        differences = zip(counts(order, name), counts(alone, name), strict=True)
        assert max(abs(one - other) for one, other in differences) <= 1, (name, order, alone)
        assert codes[name] == codes_alone[name]
    assert {name: codes[name][200] for name in LIMITS} == {"rate": 7, "parallel": 5}
