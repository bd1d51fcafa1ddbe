"""Clients of the API servers: calls of all kinds, and work that a server does for its client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp

CHAT = "/v1/chat/completions"
PAUSES_S = (0.2, 2.5)
"""Pause of a client between two calls."""
LATEST_S = 120
"""Seconds after which a client ends its request; longer than each fault."""
JOB_S = 240
"""Longest time of a job: a server that dies has it for a lease, and its calls for another one."""
POLLS_S = (0.3, 1.0)
CALLS = ("whole", "stream", "stream", "leaving", "run", "run", "quota", "quota", "quota")
"""The clients of calls."""
JOBS = ("program", "background", "batch", "export")
"""The clients of jobs."""
EXPORTS = "/v1/usage/exports"
PATHS = {
    "program": "/v1/interactions",
    "background": "/v1/responses",
    "batch": "/v1/batches",
    "export": EXPORTS,
}
"""Paths at which clients read their jobs."""
LOST = (aiohttp.ClientError, ConnectionError, TimeoutError, json.JSONDecodeError)


@dataclass
class Sent:
    """A call as its client saw it. Times are monotonic seconds."""

    kind: str
    server: str
    began_s: float
    ended_s: float = 0.0
    status: int | None = None
    call_id: str = ""
    complete: bool = False
    left: bool = False
    """True if the client disconnected by itself."""
    problem: str = ""

    @property
    def accepted(self):
        return self.status == 200 and not self.late

    @property
    def late(self):
        """True if its run had ended before the call reached the log: its stream has begun already."""
        return "conflict_error" in self.problem

    @property
    def over_quota(self):
        """True if its quota rejected it, also in a stream that began while it waited for control."""
        in_stream = self.status == 200 and '"reason":"contract_rpm"' in self.problem
        return self.kind == "quota" and (self.status == 429 or in_stream)


@dataclass
class Job:
    """A program, a response in the background, a batch or an export, as its client saw it."""

    kind: str
    server: str
    """The server that accepted it."""
    began_s: float
    ended_s: float = 0.0
    status: int | None = None
    """Status of the answer that accepted or rejected it; None if there was none."""
    id: str = ""
    state: str = ""
    """Its state when it was read last."""
    read: dict = field(default_factory=dict)
    calls: int = 0
    """Number of calls that it needs."""

    @property
    def accepted(self):
        return self.status in (200, 201, 202)


class Clients:
    """The clients of a run, on one event loop, and what they saw."""

    def __init__(self, urls, keys, chance):
        """``urls`` are those of the API servers by name, ``keys`` the headers of each kind of client."""
        self._urls, self._keys, self._random = urls, keys, chance
        self.sent: list[Sent] = []
        self.jobs: list[Job] = []

    async def run(self, until_s):
        """Send calls and jobs of all kinds until then, and follow all to their ends."""
        self._over = asyncio.Event()
        asyncio.get_running_loop().call_at(until_s, self._over.set)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                timeout=aiohttp.ClientTimeout(total=LATEST_S),
            ) as self._http,
            asyncio.TaskGroup() as tasks,
        ):
            for number, kind in enumerate(CALLS):
                chance = random.Random(self._random.random())
                tasks.create_task(self._calls(kind, number, chance))
            for kind in JOBS:
                chance = random.Random(self._random.random())
                tasks.create_task(self._jobs(kind, chance))

    async def _pause(self, seconds):
        """Wait as a client does between two calls, until the traffic is over at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    # --- calls ------------------------------------------------------------------------------------

    async def _calls(self, kind, number, chance):
        for turn in itertools.count():
            headers, calls = {}, 1
            if kind == "run":
                headers, calls = {"X-Interaction-Id": f"r{number}-{turn}"}, chance.randint(2, 5)
            for _ in range(calls):
                if self._over.is_set():
                    return
                call = Sent(kind, chance.choice([*self._urls]), time.monotonic())
                self.sent.append(call)
                streams = kind == "stream" or (kind != "whole" and chance.random() < 0.5)
                leaves_s = chance.uniform(0.0, 2.0) if kind == "leaving" else None
                body = chat(chance.randint(1, 30)) | {"stream": streams}
                try:
                    async with asyncio.timeout(leaves_s):
                        await self._call(call, body, headers | self._keys[kind])
                except TimeoutError:
                    call.left = leaves_s is not None
                    call.problem = "the client's time is over"
                except LOST as error:
                    call.problem = f"{type(error).__name__}: {error}"
                call.ended_s = time.monotonic()
                await self._pause(chance.uniform(*PAUSES_S))

    async def _call(self, call, body, headers):
        url = self._urls[call.server] + CHAT
        async with self._http.post(url, json=body, headers=headers) as answer:
            call.status, call.call_id = answer.status, answer.headers.get("x-request-id", "")
            text = await answer.text()
        if answer.status != 200:
            call.problem = text
        elif body["stream"]:
            call.complete = text.endswith("data: [DONE]\n\n")
        else:
            call.complete = "choices" in json.loads(text)
        if not call.complete:
            call.problem = call.problem or text[-500:]

    # --- jobs -------------------------------------------------------------------------------------

    async def _jobs(self, kind, chance):
        while not self._over.is_set():
            job = Job(kind, chance.choice([*self._urls]), time.monotonic())
            self.jobs.append(job)
            try:
                await getattr(self, f"_{kind}")(job, chance)
            except LOST:
                pass  # the server died with the request: there may be a job or not
            else:
                if job.accepted:
                    await self._follow(job, chance)
            job.ended_s = time.monotonic()
            await self._pause(chance.uniform(*PAUSES_S))

    async def _program(self, job, chance):
        tokens = [chance.randint(1, 10) for _ in range(4)]
        prompts = {
            "a": "{}",
            "b": "{} {{{{a.output}}}}",
            "c": "{} {{{{a.output}}}}",
            "d": "{} {{{{b.output}}}} {{{{c.output}}}}",
        }
        nodes = [
            {"id": node, "prompt": prompt.format(number)}
            for (node, prompt), number in zip(prompts.items(), tokens, strict=True)
        ]
        job.calls = len(nodes)
        await self._create(job, "/v1/interactions", {"model": "scripted", "nodes": nodes})

    async def _background(self, job, chance):
        job.calls = 1
        body = {"model": "scripted", "input": str(chance.randint(1, 20)), "background": True}
        await self._create(job, "/v1/responses", body)

    async def _batch(self, job, chance):
        job.calls = 3
        lines = [
            {
                "custom_id": str(number),
                "method": "POST",
                "url": CHAT,
                "body": chat(chance.randint(1, 10)),
            }
            for number in range(job.calls)
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "\n".join(map(json.dumps, lines)), filename="calls.jsonl")
        url = self._urls[job.server] + "/v1/files"
        async with self._http.post(url, data=form, headers=self._keys["batch"]) as answer:
            if answer.status != 200:
                job.status = answer.status
                return
            file_id = (await answer.json())["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "1h"}
        await self._create(job, "/v1/batches", body)

    async def _export(self, job, chance):
        await self._create(job, f"{EXPORTS}?group_by=app", None)

    async def _create(self, job, path, body):
        url = self._urls[job.server] + path
        async with self._http.post(url, json=body, headers=self._keys[job.kind]) as answer:
            job.status, job.read = answer.status, await answer.json()
            job.id = job.read.get("id", "")

    async def _follow(self, job, chance):
        """Read a job at any server until it has ended."""
        path = PATHS[job.kind]
        while time.monotonic() < job.began_s + JOB_S:
            url = f"{self._urls[chance.choice([*self._urls])]}{path}/{job.id}"
            try:
                async with self._http.get(url, headers=self._keys[job.kind]) as answer:
                    if answer.status == 200:
                        job.read = await answer.json()
                        job.state = _state(job)
            except LOST:
                pass
            if job.state not in (
                "",
                "running",
                "queued",
                "validating",
                "in_progress",
                "finalizing",
            ):
                return
            await asyncio.sleep(chance.uniform(*POLLS_S))


def chat(tokens):
    """Return the body of a call that generates so many tokens."""
    return {"model": "scripted", "messages": [{"role": "user", "content": str(tokens)}]}


def _state(job):
    if job.kind == "program":
        program = job.read["program"]
        return "" if program is None else program["state"]
    return job.read["state" if job.kind == "export" else "status"]
