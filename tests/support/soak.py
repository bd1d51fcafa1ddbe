"""Honest clients beside a worker that lies, a tenant that crowds and a client that cheats.

``python tests/support/soak.py [--rounds 5] [--seconds 6]`` prints how much longer honest calls take
beside the others: phases with and without them take turns, in one server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from gateway_server import ChildServer
from paced_worker import PacedWorker
from scripted_server import ScriptedServer

CHAT = "/v1/chat/completions"
HONEST_TOKENS = 20
LIE_TOKENS = 30
"""Maximum output of a call at the worker that lies."""
LIARS = 3
"""Calls that run at that worker at a time."""
MOST_S = 60
READS = 80
"""Reads that a tenant has open at a time."""
READ_PAUSE_S = 0.5
"""Seconds between two such rounds."""
ATTACK_PAUSE_S = 0.05
"""Seconds between two requests of another attack. These pauses bound the load: the test compares the
clients' shares of a server, and not the speed of the machine."""
BUDGET = 1.0
PRICE = {"model": "hostile", "input": 1000, "output": 10_000}
"""Price of a million tokens: an output of ``LIE_TOKENS`` costs 0.3 of the budget of 1."""
NUMBERS = (10**15, 2**53, 2**63, 2**200, -7, 0, 1.5, 1e308, True, "9", None, [], {})
USAGES = (
    *({"prompt_tokens": 9, "completion_tokens": each} for each in NUMBERS),
    *({"prompt_tokens": each, "completion_tokens": 3} for each in NUMBERS),
    {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2**63}},
    *({}, None, "many", [1]),
)
CHOICES = (
    [None],
    "text",
    [{"index": 0, "delta": "text", "message": "text"}],
    [{"index": 2**70, "delta": {"content": "x"}, "message": {"content": "x"}}],
    [{"index": 0, "delta": {"tool_calls": "x"}, "message": {"tool_calls": "x"}}],
    [{"index": 0, "delta": {"content": 5}, "message": {"content": 5}, "finish_reason": "stop"}],
    [{"index": 0, "delta": {}, "message": {"content": "x"}, "finish_reason": "abort"}],
)


class LyingWorker(ScriptedServer):
    """A worker of the model ``hostile`` whose answers differ from call to call."""

    def __init__(self):
        super().__init__(models=("hostile",))
        self._numbers = itertools.count()

    async def _answer(self, word, body, request):
        number = next(self._numbers)
        kind = number % 4
        usage = USAGES[number // 4 % len(USAGES)]
        choices = CHOICES[number // 4 % len(CHOICES)]
        if not body.get("stream"):
            text = {"index": 0, "message": {"role": "assistant", "content": "x " * 9}}
            made = {"id": "w", "object": "chat.completion", "created": 1, "model": "hostile"}
            made["choices"] = choices if kind == 1 else [{**text, "finish_reason": "stop"}]
            return web.json_response({**made, "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(choices, **more):
            made = {"id": "w", "object": "chat.completion.chunk", "created": 1, "model": "hostile"}
            event = json.dumps({**made, "choices": choices, **more})
            await response.write(f"data: {event}\n\n".encode())

        say = [{"index": 0, "delta": {"content": "x "}, "finish_reason": None}]
        if kind == 1:
            await send(choices, usage=usage)
        if kind == 2:
            for _ in range(100_000):  # it does not end by itself, but for the test's sake
                await send(say)
        if kind == 3:
            await response.write(b'data: {"id": \xff "\\ud83d"}\n\ndata: [1]\n\n')
        for _ in range(9):
            await send(say, usage=usage)
        await send([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        await send([], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


@dataclass
class Seen:
    """Answers that honest clients received."""

    calls: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    """Time of each call until its end."""
    errors: list[str] = field(default_factory=list)


class Soak:
    """The clients of one server; ``setup`` registers them."""

    def __init__(self, server, lying):
        self.server, self.lying = server, lying
        self._numbers = itertools.count()
        self.refused_by_budget = asyncio.Event()
        """The liar's budget is full."""
        self.surprises = []
        """Answers with a status of 500, which none of the attacks should cause."""

    def setup(self):
        """Create the tenants and their apps, one honest one and three others."""
        admin = self.server.admin_key
        self.server.call(admin, "POST", "/admin/prices", PRICE)
        self.tenants, self.keys = {}, {}
        profile = {"stages": [{"input_tokens": 9, "output_tokens": 20}]}
        for name in ("honest", "liar", "crowd", "cheat"):
            made = self.server.call(admin, "POST", "/admin/tenants", {"name": name})
            self.tenants[name] = made["api_key"]
            budget = {"max_budget": BUDGET, "budget_duration": "12mo"}
            app = {"name": name, "profile": {**profile, "calls_per_interaction": 1}}
            if name == "liar":
                app["contract"] = budget
            made = self.server.call(self.tenants[name], "POST", "/v1/apps", app)
            self.keys[name] = made["api_key"]

    async def honest(self, seconds, *, attacked):
        """Run honest clients for so long, with or without the others; return what they saw.

        With the others they run until the liar's budget is full, too.
        """
        seen, stop = Seen(), asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.server.url, connector=connector) as http:
            others = []
            if attacked:
                others = [
                    *(self._lie(http, stop) for _ in range(LIARS)),
                    self._read(http, stop),
                    self._crowd(http, stop),
                    self._cheat(http, stop),
                ]
            tasks = [asyncio.create_task(each) for each in others]
            clients = [asyncio.create_task(self._call(http, stop, seen)) for _ in range(4)]
            await _pause(stop, seconds)
            if attacked:
                await _pause(self.refused_by_budget, MOST_S)
            stop.set()
            await asyncio.gather(*clients, *tasks)
        return seen

    async def _call(self, http, stop, seen):
        """Make one call after the other."""
        while not stop.is_set():
            began_s = time.monotonic()
            async with self._chat(http, "honest", "stub", HONEST_TOKENS, stream=True) as answer:
                data = await answer.read()
            seen.seconds.append(time.monotonic() - began_s)
            if answer.status != 200 or not data.endswith(b"data: [DONE]\n\n"):
                seen.errors.append(f"{answer.status} {data[-300:]!r}")
                continue
            seen.calls += 1
            events = [json.loads(line[6:]) for line in data.split(b"\n\n")[:-2]]
            (usage,) = [each["usage"] for each in events if each.get("usage")]
            seen.output_tokens += usage["completion_tokens"]
            seen.prompt_tokens += usage["prompt_tokens"]

    def _chat(self, http, name, model, tokens, *, headers=(), **more):
        body = {
            "model": model,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": f"ok {next(self._numbers)}"}],
            **more,
        }
        if more.get("stream"):
            body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": f"Bearer {self.keys[name]}", **dict(headers)}
        return http.post(CHAT, json=body, headers=headers)

    async def _lie(self, http, stop):
        """Make calls at the worker that lies."""
        while not stop.is_set():
            streams = bool(next(self._numbers) % 3)
            with contextlib.suppress(aiohttp.ClientError):
                async with self._chat(
                    http, "liar", "hostile", LIE_TOKENS, stream=streams
                ) as answer:
                    data = await answer.read()
                if answer.status == 429 and b"insufficient_quota" in data:
                    self.refused_by_budget.set()
                if answer.status == 500:
                    self.surprises.append(data[:300])
            await _pause(stop, ATTACK_PAUSE_S)

    async def _read(self, http, stop):
        """Read reports, many at a time."""
        pages = itertools.cycle(["/v1/usage", "/v1/interactions", "/v1/usage?group_by=user,day"])
        headers = {"Authorization": f"Bearer {self.keys['crowd']}"}

        async def read(page):
            async with http.get(page, headers=headers) as answer:
                if answer.status >= 500:
                    self.surprises.append((page, answer.status))
                await answer.read()

        while not stop.is_set():
            await asyncio.gather(*(read(next(pages)) for _ in range(READS)))
            await _pause(stop, READ_PAUSE_S)

    async def _crowd(self, http, stop):
        """Fill what tenants share: kept answers, background responses, runs and followers."""
        headers = {"Authorization": f"Bearer {self.keys['crowd']}"}
        while not stop.is_set():
            number = next(self._numbers)
            key = {"Idempotency-Key": f"key-{number}"}
            async with self._chat(http, "crowd", "stub", 1, headers=key) as answer:
                await answer.read()
            body = {"model": "stub", "input": f"ok {number}", "max_output_tokens": 16}
            response = {**body, "background": True, "store": True}
            async with http.post("/v1/responses", json=response, headers=headers) as answer:
                await answer.read()
            async with http.post("/v1/interactions", json={}, headers=headers) as answer:
                await answer.read()
            await _pause(stop, ATTACK_PAUSE_S)

    async def _cheat(self, http, stop):
        """Break calls off before their end and repeat them as retries, and send two keys."""
        for attempt in itertools.count():
            if stop.is_set():
                return
            headers = {"x-stainless-retry-count": str(attempt % 20)}
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(0.1):
                    async with self._chat(
                        http, "cheat", "stub", HONEST_TOKENS, headers=headers
                    ) as answer:
                        await answer.read()
            two = [
                ("Authorization", f"Bearer {self.keys['cheat']}"),
                ("Authorization", f"Bearer {self.keys['honest']}"),
            ]
            async with http.post(CHAT, json={"model": "stub"}, headers=two) as answer:
                if answer.status not in (400, 401):
                    self.surprises.append((answer.status, await answer.read()))

    def usage(self, name):
        """Return the usage report of a tenant."""
        report = self.server.call(self.tenants[name], "GET", "/v1/usage")
        return report["items"][0] if report["items"] else None


async def _pause(event, seconds):
    """Wait for so long, or until an event such as the end of the soak."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


@contextlib.asynccontextmanager
async def soaking(folder):
    """Start a server with an honest worker and one that lies; yield the clients."""
    paced = PacedWorker(step_s=0.01)
    try:
        async with LyingWorker() as lying:
            urls = f"{paced.url},{lying.url}"
            more = {"worker_urls": urls, "log_level": "warning"}
            server = await asyncio.to_thread(ChildServer, folder / "data", **more)
            try:
                soak = Soak(server, lying)
                await asyncio.to_thread(soak.setup)
                yield soak
            finally:
                await asyncio.to_thread(server.__exit__, None, None, None)
    finally:
        paced.close()


async def _measure(rounds, seconds):
    with tempfile.TemporaryDirectory() as folder:
        async with soaking(Path(folder)) as soak:
            await soak.honest(2, attacked=True)
            ratios = {"median": [], "p95": []}
            for _ in range(rounds):
                found = {}
                for attacked in (False, True):
                    seen = await soak.honest(seconds, attacked=attacked)
                    assert not seen.errors, seen.errors[:3]
                    cuts = statistics.quantiles(seen.seconds, n=20)
                    found[attacked] = {"median": cuts[9], "p95": cuts[18]}
                for name, values in ratios.items():
                    values.append(found[True][name] / found[False][name])
                print({a: {k: round(v, 4) for k, v in f.items()} for a, f in found.items()})
            for name, values in ratios.items():
                low, high = min(values), max(values)
                print(f"{name}: {statistics.median(values):.3f} ({low:.3f} to {high:.3f})")
            print("unexpected answers:", soak.surprises[:3])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    options = parser.parse_args()
    asyncio.run(_measure(options.rounds, options.seconds))
