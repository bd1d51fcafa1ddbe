"""Servers that share an order lose processes, Redis and PostgreSQL under traffic; no call may suffer.

``python tests/faults/run.py [--minutes 2] [--seed 1]`` starts two API servers, two control servers, a
Redis and a PostgreSQL. Clients call at a few calls a second, while a schedule from the seed kills,
suspends and restarts processes. When all run again and are quiet, every call that a client had accepted
must be in the ledger exactly once, and all servers must agree. Exit status 1 if a check fails.

The order of faults depends on the seed alone; how many fit into the minutes, on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import aiohttp
import psycopg
from database_proxy import DatabaseProxy
from postgres_process import new_database, new_template, running_postgres
from processes import PAUSE_S
from psycopg.rows import dict_row
from scripted_worker import ScriptedWorker
from shared_servers import RedisProcess, SharedServers

from fairserve.platform.db.engine import SessionFactory, connect, session_factory
from fairserve.platform.reporting.usage.rollups import roll_up

CHAT = "/v1/chat/completions"
API, CONTROL = ("first", "second"), ("control", "standby")
IDLE_S = 5.0
"""Idle timeout of runs."""
PAUSES_S = (0.2, 2.5)
"""Pause of a client between two calls."""
LATEST_S = 120
"""Seconds after which a client ends its request; longer than each fault."""
SETTLE_S = 300
"""Longest wait for the state after the traffic. The lease of a lost call alone is 60 s."""
RPM = 20
"""Quota of the app whose clients call more often."""
LOG_LINES = 40
FAULTS = {
    "kill an API server": 3,
    "suspend an API server": 2,
    "kill the speaker": 3,
    "suspend the speaker": 2,
    "kill the standby": 2,
    "suspend the standby": 1,
    "kill Redis": 3,
    "empty Redis": 3,
    "kill the speaker and Redis": 2,
    "empty Redis and kill the speaker": 1,
    "take PostgreSQL away": 3,
}
"""Faults and their weights in the schedule."""


class CountingWorker(ScriptedWorker):
    """A worker whose prompts are numbers of tokens; it counts what it generates for each call id."""

    def __init__(self):
        super().__init__()
        self.began, self.ended = Counter(), {}

    async def _stream(self, word, said, held, request, response):
        call_id = request.headers["x-request-id"]
        self.began[call_id] += 1
        await response.begin()
        tokens = int(word)
        for count in range(1, tokens + 1):
            await asyncio.sleep(0.1)
            await self._send(response, {"content": "x "}, count)
        await self._send(response, {}, tokens, finish_reason="stop")
        await self._send(response, None, tokens)
        self.ended[call_id] = tokens
        await response.write(b"data: [DONE]\n\n")


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
        return self.status == 200


@dataclass
class Fault:
    """A fault that was made."""

    what: str
    began_s: float
    servers: tuple[str, ...] = ()
    ended_s: float | None = None
    """When everything was ready again."""


@dataclass
class World:
    """Everything of one run of the faults."""

    servers: SharedServers
    redis: RedisProcess
    proxy: DatabaseProxy
    worker: CountingWorker
    database_url: str
    random: random.Random
    sessions: SessionFactory
    """Sessions of the database without the proxy: no Celery runs here, so the checks roll up rows."""
    began_s: float = field(default_factory=time.monotonic)
    sent: list[Sent] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    killed: Counter = field(default_factory=Counter)

    def problem(self, text):
        self.problems.append(text)

    # --- traffic ----------------------------------------------------------------------------------

    async def clients(self, apps, until_s):
        """Send calls of all kinds until then."""
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                timeout=aiohttp.ClientTimeout(total=LATEST_S),
            ) as http,
            asyncio.TaskGroup() as tasks,
        ):
            kinds = (
                "whole",
                "stream",
                "stream",
                "leaving",
                "run",
                "run",
                "quota",
                "quota",
                "quota",
            )
            for number, kind in enumerate(kinds):
                chance = random.Random(self.random.random())
                client = self._client(http, kind, number, apps, chance, until_s)
                tasks.create_task(client)

    async def _client(self, http, kind, number, apps, chance, until_s):
        for turn in itertools.count():
            headers, calls = {}, 1
            if kind == "run":
                headers, calls = {"X-Interaction-Id": f"r{number}-{turn}"}, chance.randint(2, 5)
            for _ in range(calls):
                if time.monotonic() > until_s:
                    return
                call = Sent(kind, chance.choice(API), time.monotonic())
                self.sent.append(call)
                streams = kind == "stream" or (kind != "whole" and chance.random() < 0.5)
                leaves_s = chance.uniform(0.0, 2.0) if kind == "leaving" else None
                body = {
                    "model": "scripted",
                    "messages": [{"role": "user", "content": str(chance.randint(1, 30))}],
                    "stream": streams,
                }
                try:
                    async with asyncio.timeout(leaves_s):
                        await self._call(http, call, body, headers | apps[kind])
                except TimeoutError:
                    call.left = leaves_s is not None
                    call.problem = "the client's time is over"
                except (aiohttp.ClientError, ConnectionError, json.JSONDecodeError) as error:
                    call.problem = f"{type(error).__name__}: {error}"
                call.ended_s = time.monotonic()
                await asyncio.sleep(chance.uniform(*PAUSES_S))

    async def _call(self, http, call, body, headers):
        url = self.servers[call.server].url + CHAT
        async with http.post(url, json=body, headers=headers) as answer:
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

    # --- faults -----------------------------------------------------------------------------------

    async def schedule(self, until_s):
        """Make one fault after another until then."""
        while True:
            await asyncio.sleep(self.random.uniform(2, 8))
            (what,) = self.random.choices([*FAULTS], [*FAULTS.values()])
            api, lasts_s = self.random.choice(API), self.random.uniform(0.5, 8)
            if time.monotonic() > until_s:
                return
            await self._fault(what, api, lasts_s)

    async def _fault(self, what, api, lasts_s):
        speaker = next(
            (n for n in CONTROL if self.servers[n] is self.servers.speaker()), CONTROL[0]
        )
        (standby,) = {*CONTROL} - {speaker}
        names = {"API": api, "speaker": speaker, "standby": standby}
        servers = tuple(name for word, name in names.items() if word in what)
        fault = Fault(f"{what} for {lasts_s:.1f} s", time.monotonic(), servers)
        self.faults.append(fault)
        print(
            f"{fault.began_s - self.began_s:6.1f} s: {fault.what} {' '.join(servers)}", flush=True
        )
        suspends = "suspend" in what
        for name in servers:
            self._signal(name, signal.SIGSTOP if suspends else signal.SIGKILL)
        if "Redis" in what:
            self.redis.kill()
        if "PostgreSQL" in what:
            self.proxy.cut()
        await asyncio.sleep(lasts_s)
        if "Redis" in what:
            if "empty" in what:
                self.redis.empty()
            await asyncio.to_thread(self.redis.start)
        self.proxy.restore()
        for name in servers:
            if suspends:
                self._signal(name, signal.SIGCONT)
            else:
                self._start(name)
        for name in servers:
            await self.until_none(
                f"{name} is not ready after: {what}", lambda n=name: self._unready(n)
            )
        fault.ended_s = time.monotonic()

    def _signal(self, name, number):
        server = self.servers[name]
        self.still_runs(name)
        server.process.send_signal(number)
        if number == signal.SIGKILL:
            server.process.wait()

    def _start(self, name):
        """Start a killed server again, with a log of its own."""
        server = self.servers[name]
        self.killed[name] += 1
        server.log_path.rename(server.log_path.with_suffix(f".{self.killed[name]}.log"))
        server.launch()

    def _unready(self, name):
        return self.servers[name].runs() and not self.servers[name]._ready()

    def still_runs(self, name):
        if not self.servers[name].runs():
            code = self.servers[name].process.returncode
            self.problem(f"{name} ended by itself with {code}")

    # --- checks -----------------------------------------------------------------------------------

    async def until_none(self, what, probe):
        """Poll other processes, in a thread, until nothing is found; note a problem if it stays."""
        end_s = time.monotonic() + SETTLE_S
        while found := await asyncio.to_thread(probe):
            if time.monotonic() > end_s:
                self.problem(f"{what}: {found}")
                return
            await asyncio.sleep(PAUSE_S * 10)

    async def check(self, apps):
        """Wait until the servers are quiet, then compare what they say with what clients saw."""
        for name in self.servers.servers:
            self.still_runs(name)
        if self.problems:
            return
        await self.until_none("servers reject calls", lambda: self._rejections(apps["plain"]))
        await self.until_none("live runs, calls and demand", self._lives)
        await self.until_none("views differ", self._different_views)
        await self.until_none("calls without a row", self._missing)
        await self.until_none("runs and calls differ", self._wrong_runs)
        await self.until_none("reports and rows differ", self._wrong_sums)
        self._check_calls()
        self._check_quota(apps["quota"]["id"])
        self._check_logs()
        for name in self.servers.servers:
            self.still_runs(name)

    def _views(self):
        """Return what each server says of the whole cell."""
        views = {name: each.cluster() for name, each in self.servers.servers.items()}
        for view in views.values():
            view.pop("processes"), view.pop("fleet_file")
            for worker in view["workers"]:
                worker.pop("reported")
        return views

    def _different_views(self):
        views = self._views()
        return views if any(each != views["first"] for each in views.values()) else None

    def _lives(self):
        """Return what lives at the servers; empty if nothing does."""
        names = ("live_interactions", "queued_calls", "running_calls", "demand_tokens")
        return [
            (name, what, each[what])
            for name, view in self._views().items()
            for each in (view, *view["workers"], *view["models"])
            for what in (*names, "calls")
            if each.get(what)
        ]

    def _rows(self):
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM ledger_calls").fetchall()

    def _missing(self):
        rows = {row["call_id"] for row in self._rows()}
        return [call for call in self.sent if call.accepted and call.call_id not in rows]

    def _rejections(self, app):
        """Return the answers of the API servers that do not take a call."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": "1"}]}
        answers = {name: self.servers[name].post(CHAT, body, app["api_key"]) for name in API}
        return {name: each.text for name, each in answers.items() if each.status_code != 200}

    def _wrong_runs(self):
        """Return the runs whose row differs from their calls' rows in the number of calls."""
        with psycopg.connect(self.database_url) as connection:
            query = "SELECT app_id, id, calls FROM interactions"
            found = {(app, run): calls for app, run, calls in connection.execute(query)}
        calls = Counter(
            (row["app_id"], row["interaction_id"])
            for row in self._rows()
            if row["outcome"] != "refused"
        )
        return {
            run: (calls.get(run), found.get(run))
            for run in {*calls, *found}
            if calls.get(run) != found.get(run)
        }

    def _wrong_sums(self):
        """Return how the report of each API server differs from the rows, which are rolled up here."""
        roll_up(self.sessions)
        rows = [row for row in self._rows() if row["charged"]]
        expected = {
            "calls": len(rows),
            "output_tokens": sum(row["output_tokens"] for row in rows),
            "completed": sum(row["outcome"] == "completed" for row in rows),
            "failed": sum(row["outcome"] == "failed" for row in rows),
        }
        found = {}
        for name in API:
            sums = self.servers[name].admin("GET", "/admin/usage").json()["sums"]
            if differs := {k: (v, sums[k]) for k, v in expected.items() if sums[k] != v}:
                found[name] = differs
        return found

    def _check_calls(self):
        rows = {row["call_id"]: row for row in self._rows()}
        for call_id, times in self.worker.began.items():
            if times > 1:
                self.problem(f"{call_id} was granted {times} times")
            if call_id not in rows:
                self.problem(f"the worker ran {call_id}, which has no row")
        for call_id, row in rows.items():
            if (
                row["outcome"] == "completed"
                and self.worker.ended.get(call_id) != row["output_tokens"]
            ):
                self.problem(f"{row} is complete; the worker: {self.worker.ended.get(call_id)}")
        ids = Counter(call.call_id for call in self.sent if call.accepted)
        self.problems += [f"{n} calls have the id {call_id}" for call_id, n in ids.items() if n > 1]
        for call in self.sent:
            outcome = rows.get(call.call_id, {}).get("outcome")
            if call.complete and outcome != "completed":
                self.problem(f"{call} is complete; its row is {outcome}")
            if call.left or call.complete or call.status in (429, 503) or self._disturbed(call):
                continue
            self.problem(f"broken: {call}; its row is {outcome}")

    def _disturbed(self, call):
        """Return whether the server of a call was killed or suspended during it."""
        return any(
            call.server in fault.servers
            and fault.began_s <= call.ended_s
            and (fault.ended_s is None or call.began_s <= fault.ended_s)
            for fault in self.faults
        )

    def _check_quota(self, app_id):
        accepted = {call.call_id for call in self.sent if call.accepted}
        times = sorted(
            row["accepted_at"].timestamp()
            for row in self._rows()
            if row["app_id"] == app_id and row["call_id"] in accepted
        )
        for first, last in zip(times, times[RPM:], strict=False):
            if last - first < 60:
                self.problem(f"{RPM + 1} accepted calls of the quota in {last - first:.3f} s")

    def logs(self):
        """Return the logs of all processes that ran."""
        folder = next(iter(self.servers.servers.values())).log_path.parent
        return {
            path.name: path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))
        }

    def _check_logs(self):
        for name, text in self.logs().items():
            if "Traceback" in text:
                at = text.index("Traceback")
                self.problem(f"a traceback in {name}: {text[max(0, at - 300) : at + 3000]}")

    def report(self):
        """Return counts of what happened."""
        kinds = Counter((call.kind, call.status, call.complete) for call in self.sent)
        lines = [f"{n:5d} {kind}: {status} complete={c}" for (kind, status, c), n in kinds.items()]
        return "\n".join(sorted(lines))


async def run(folder, minutes, seed):
    """Make the faults; return the world after its checks."""
    with running_postgres() as postgres:
        database_url = new_database(postgres, new_template(postgres))
        proxy = DatabaseProxy(database_url)
        await proxy.start()
        redis = RedisProcess(folder / "redis", keeps=True)
        worker = CountingWorker()
        settings = {"interaction_idle_timeout_s": IDLE_S}
        (folder / "servers").mkdir()
        servers = SharedServers(folder / "servers", proxy.url, redis.url, worker.url, **settings)
        engine = connect(database_url)
        chance, sessions = random.Random(seed), session_factory(engine)
        world = World(servers, redis, proxy, worker, database_url, chance, sessions)
        try:
            started = {**dict.fromkeys(CONTROL, "control"), **dict.fromkeys(API, "api")}
            await asyncio.to_thread(servers.start, **started)
            first = servers["first"]
            plain = await asyncio.to_thread(first.new_app, name="plain")
            quota = await asyncio.to_thread(
                first.new_app, name="quota", contract={"rpm_limit": RPM}
            )
            keys = {
                kind: {
                    "Authorization": f"Bearer {(quota if kind == 'quota' else plain)['api_key']}"
                }
                for kind in ("whole", "stream", "leaving", "run", "quota")
            }
            world.began_s = time.monotonic()
            end_s = world.began_s + minutes * 60
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(world.clients(keys, end_s))
                tasks.create_task(world.schedule(end_s))
            await world.check({"plain": plain, "quota": quota})
        except BaseException:
            show(world, seed)
            raise
        finally:
            servers.close()
            redis.close()
            engine.dispose()
            await asyncio.to_thread(worker.close)
            await proxy.close()
    return world


def show(world, seed):
    """Print what repeats and explains a failure."""
    print(f"\nseed {seed}; faults:")
    for fault in world.faults:
        times = fault.began_s - world.began_s, (fault.ended_s or world.began_s) - world.began_s
        print(f"  {times[0]:7.2f} to {times[1]:7.2f} s: {fault.what} {' '.join(fault.servers)}")
    for name, text in world.logs().items():
        print(f"\n--- the last lines of {name}")
        print("\n".join(text.splitlines()[-LOG_LINES:]))
    print(world.report())
    for problem in world.problems[:50]:
        print(f"FAILED: {problem}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairserve-faults-") as folder:
        world = asyncio.run(run(Path(folder), given.minutes, given.seed))
        if world.problems:
            show(world, given.seed)
            sys.exit(1)
    print(world.report())
    print(
        f"seed {given.seed}: {len(world.faults)} faults, {len(world.sent)} calls: all checks hold"
    )


if __name__ == "__main__":
    main()
