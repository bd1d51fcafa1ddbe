"""Servers that share an order lose processes, links and stores under traffic; no call may suffer.

``python tests/faults/run.py [--minutes 2] [--seed 1]`` starts two API servers, two control servers, two
workers, Celery's worker and beat, a PostgreSQL, and for half of the minutes one Redis, for the other
half three that sentinels watch. Clients send calls, programs, responses in the background, batches and
exports, while a schedule from the seed makes faults. When all run again and are quiet, every call that a
client had accepted must be in the ledger exactly once, every job must have ended, reports, exports and
webhooks must have what the ledger has, and all servers must agree. Exit status 1 if a check fails.

The order of faults depends on the seed alone; how many fit into the minutes, on the machine. The disk of
a control server is filled only where this may mount one of its own. Links are cut between network
namespaces where this may make them, else in a proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import psycopg
import redis
from counting_worker import WorkerProcess
from database_proxy import DatabaseProxy
from job_processes import JobProcess
from postgres_process import new_database, new_template, running_postgres
from processes import PAUSE_S, eventually
from psycopg.rows import dict_row
from shared_servers import SECRET, SharedServers
from stores import STORES, OneRedis, SentinelRedis
from traffic import CALLS, CHAT, JOBS, Clients, chat
from webhook_world import Receiver

from fairserve.platform.db.engine import SessionFactory, connect, session_factory
from fairserve.platform.reporting.usage.reconcile import compare
from fairserve.scheduling.dispatch.admission import BILLED

API, CONTROL, WORKERS = ("first", "second"), ("control", "standby"), ("worker 1", "worker 2")
JOB_PROCESSES = {"Celery": "worker", "beat": "beat"}
"""The processes of background jobs, with the command of each."""
SMALL_DISK = "standby"
"""The control server whose data folder is on a disk of its own."""
DISK_MB = 96
IDLE_S = 5.0
"""Idle timeout of runs."""
SETTLE_S = 300
"""Longest wait for the state after the traffic."""
LEASE_OVER = "lease ended without progress"
"""Error of calls whose lease of 60 s ended; those of a server that is lost end after 30 s."""
RPM = 20
"""Quota of the app whose clients call more often."""
LOG_LINES = 100
FAULTS = {
    "kill an API server": 3,
    "suspend an API server": 2,
    "kill the speaker": 3,
    "suspend the speaker": 2,
    "kill the standby": 2,
    "suspend the standby": 1,
    "kill a worker": 2,
    "suspend a worker": 1,
    "kill Celery": 3,
    "suspend Celery": 2,
    "kill beat": 1,
    "take PostgreSQL away": 3,
    "take PostgreSQL away and kill the speaker": 2,
    "fill a disk": 2,
}
"""Faults and their weights in the schedule, beside those of the kind of Redis."""
LONGER = {
    "cut the link of an API server to Redis": 2.5,
    "suspend an API server": 2.5,
    "suspend Celery": 2.5,
}
"""Factors of the length of some faults: the queued calls of a silent server end after 10 s."""
DELIVERY_S = 3.0
"""Longest wait of a fault of Celery for a delivery that it interrupts."""
TIMED = {
    "kill the speaker",
    "kill the primary of Redis",
    "suspend the primary of Redis",
    "move the primary of Redis",
    "kill the speaker and the primary of Redis",
}
"""Faults of which the time to the next tick is measured."""
ENDED = {"program": "complete", "background": "completed", "batch": "completed", "export": "ready"}
"""State of each job that has succeeded."""
WRONG = "Traceback|outputs of this process differ|leaves the cell"
"""Errors that no log of a server has. Celery's have a traceback whenever Redis is away."""
NOT_ROLLED_UP = "SELECT * FROM usage_dirty"
NOT_DELIVERED = "SELECT * FROM webhook_deliveries WHERE state <> 'delivered'"


@dataclass
class Fault:
    """A fault that was made."""

    what: str
    began_s: float
    servers: tuple[str, ...] = ()
    """Processes that were killed or suspended."""
    ended_s: float | None = None
    """When everything was ready again."""


@dataclass
class World:
    """Everything of one run of the faults."""

    servers: SharedServers
    redis: OneRedis | SentinelRedis
    proxy: DatabaseProxy
    workers: dict[str, WorkerProcess]
    jobs: dict[str, JobProcess]
    receiver: Receiver
    """The receiver of the webhook."""
    disk: Path | None
    """A folder on the small disk; None without one."""
    clients: Clients
    database_url: str
    random: random.Random
    sessions: SessionFactory
    """Sessions of the database without the proxy."""
    began_s: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list)
    takeovers_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From each fault in ``TIMED`` to the next tick in the log."""
    problems: list[str] = field(default_factory=list)
    killed: Counter = field(default_factory=Counter)

    def problem(self, text):
        self.problems.append(text)

    # --- faults -----------------------------------------------------------------------------------

    async def schedule(self, until_s):
        """Make one fault after another until then."""
        weights = FAULTS | self.redis.faults
        while True:
            await asyncio.sleep(self.random.uniform(2, 8))
            (what,) = self.random.choices([*weights], [*weights.values()])
            api, worker = self.random.choice(API), self.random.choice(WORKERS)
            lasts_s = self.random.uniform(0.5, 8) * LONGER.get(what, 1)
            if time.monotonic() > until_s:
                return
            await self._fault(what, api, worker, lasts_s)

    async def _fault(self, what, api, worker, lasts_s):
        speaker = next(
            (n for n in CONTROL if self.servers[n] is self.servers.speaker()), CONTROL[0]
        )
        (standby,) = {*CONTROL} - {speaker}
        stops = what.startswith(("kill", "suspend")) or what.endswith("kill the speaker")
        names = {"API": api, "speaker": speaker, "standby": standby, "worker": worker}
        names |= {name: name for name in JOB_PROCESSES}
        servers = tuple(name for word, name in names.items() if stops and word in what)
        fault = Fault(f"{what} for {lasts_s:.1f} s", time.monotonic(), servers)
        self.faults.append(fault)
        print(
            f"{fault.began_s - self.began_s:6.1f} s: {fault.what} {' '.join(servers)}", flush=True
        )
        suspends = "suspend" in what
        if "Celery" in what:
            await asyncio.to_thread(self._until_delivery)
        for name in servers:
            self._signal(name, signal.SIGSTOP if suspends else signal.SIGKILL)
        self.receiver.hold.set()
        taken_over = None
        began_at = time.time()
        await self.redis.hit(what, api)
        if what in TIMED:
            taken_over = asyncio.create_task(asyncio.to_thread(self._takeover_s, began_at))
        if "PostgreSQL" in what:
            self.proxy.cut()
        if "disk" in what and self.disk is not None:
            await asyncio.to_thread(fill, self.disk)
        await asyncio.sleep(lasts_s)
        await self.redis.mend(what, api)
        self.proxy.restore()
        if self.disk is not None:
            (self.disk / FILLER).unlink(missing_ok=True)
        for name in servers:
            if suspends:
                self._signal(name, signal.SIGCONT)
            else:
                self._start(name)
        if taken_over is not None:
            self.takeovers_s[what].append(await taken_over)
        await self.until_none(f"not ready after: {what}", self._unready)
        fault.ended_s = time.monotonic()

    def _until_delivery(self):
        """Wait until a delivery of the webhook is in progress, and have it wait for its answer."""
        self.receiver.hold.clear()
        before, end_s = len(self.receiver.received), time.monotonic() + DELIVERY_S
        while len(self.receiver.received) == before and time.monotonic() < end_s:
            time.sleep(PAUSE_S)

    def _takeover_s(self, began_at):
        """Return the seconds from a time to the next tick in the log."""
        after_ms = int(began_at * 1000)

        def ticked():
            try:
                with self.redis.client() as client:
                    [base] = client.keys("fairserve:*:base") or [None]
                    if base is None:
                        return None
                    epoch = json.loads(client.get(base))["epoch"]
                    log = f"{base.decode().removesuffix('base')}log:{epoch}"
                    entries = client.xrange(log, min=after_ms)
            except redis.RedisError:
                return None
            return [entry for entry, fields in entries if b"t" in fields]

        [first, *_] = eventually(ticked, "nobody speaks after a fault")
        return int(first.split(b"-")[0]) / 1000 - began_at

    def _process(self, name):
        return self.workers.get(name) or self.jobs.get(name) or self.servers[name]

    def _signal(self, name, number):
        """Send a signal to a process and its children."""
        process = self._process(name).process
        self.still_runs(name)
        os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()

    def _start(self, name):
        """Start a killed process again, a server with a log of its own."""
        self.killed[name] += 1
        if name in self.servers.servers:
            log = self.servers[name].log_path
            log.rename(log.with_suffix(f".{self.killed[name]}.log"))
        self._process(name).launch()

    def _unready(self):
        """Return what is not ready, and the servers that lack a worker."""
        if apart := self.redis.unready():
            return apart
        found = []
        for name, server in self.servers.servers.items():
            if not server.runs():
                self.still_runs(name)
            elif not server._ready() or self._workers_at(server) < len(WORKERS):
                found.append(name)
        return found

    def _workers_at(self, server):
        """Return how many workers a server shows: 0 before it has found the database again."""
        answer = server.admin("GET", "/admin/cluster")
        return len(answer.json()["workers"]) if answer.status_code == 200 else 0

    def still_runs(self, name):
        if not self._process(name).runs():
            code = self._process(name).process.returncode
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
        self._all_run()
        if self.problems:
            return
        await self.until_none("servers reject calls", lambda: self._rejections(apps["plain"]))
        await self.until_none("not exactly one speaks", lambda: self.servers.speaker() is None)
        await self.until_none("live runs, calls and demand", self._lives)
        await self.until_none("views differ", self._different_views)
        await self.until_none("calls without a row", self._missing)
        await self.until_none("runs and calls differ", self._wrong_runs)
        await self.until_none("rows are not rolled up", lambda: self._query(NOT_ROLLED_UP))
        await self.until_none("reports and rows differ", self._wrong_sums)
        await self.until_none("webhooks are not delivered", lambda: self._query(NOT_DELIVERED))
        await asyncio.to_thread(self._check_background, apps["plain"])
        self._check_calls()
        self._check_jobs()
        self._check_quota(apps["quota"]["id"])
        self._check_logs()
        self._all_run()

    def _all_run(self):
        for name in (*self.servers.servers, *self.workers, *self.jobs):
            self.still_runs(name)

    def _views(self):
        """Return what each server says of the whole cell."""
        views = {name: each.cluster() for name, each in self.servers.servers.items()}
        for view in views.values():
            view.pop("processes"), view.pop("fleet_file")
            for worker in view["workers"]:
                for own in ("reported", "reason", "circuit"):  # what this server has seen of it
                    worker.pop(own, None)
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

    def _query(self, text):
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute(text).fetchall()

    def _rows(self):
        return self._query("SELECT * FROM ledger_calls")

    def _missing(self):
        rows = {row["call_id"] for row in self._rows()}
        return [call for call in self.clients.sent if call.accepted and call.call_id not in rows]

    def _rejections(self, app):
        """Return the answers of the API servers that do not take a call."""
        answers = {name: self.servers[name].post(CHAT, chat(1), app["api_key"]) for name in API}
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
        """Return how the report of each API server differs from the rows."""
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
        ended = {}
        for name, worker in self.workers.items():
            began, of_worker = worker.counts()
            ended |= of_worker
            self.problems += [
                f"{call_id} was granted {times} times at {name}"
                for call_id, times in began.items()
                if times > 1
            ]
            self.problems += [
                f"{name} ran {call_id}, which has no row"
                for call_id in began
                if call_id not in rows
            ]
        for call_id, row in rows.items():
            if row["outcome"] == "completed" and ended.get(call_id) != row["output_tokens"]:
                self.problem(f"{row} is complete; the workers: {ended.get(call_id)}")
        for call_id in ended:
            row = rows.get(call_id)
            if row and not row["estimated"] and row["output_tokens"] > ended[call_id]:
                self.problem(f"{row} has more tokens than the {ended[call_id]} that were generated")
        ids = Counter(call.call_id for call in self.clients.sent if call.accepted)
        self.problems += [f"{n} calls have the id {call_id}" for call_id, n in ids.items() if n > 1]
        self.problems += [
            f"{row} held its place until its lease was over"
            for row in rows.values()
            if row["error"] == LEASE_OVER
        ]
        for call in self.clients.sent:
            outcome = rows.get(call.call_id, {}).get("outcome")
            if call.complete and outcome != "completed":
                self.problem(f"{call} is complete; its row is {outcome}")
            if call.over_quota and call.status == 200 and outcome != "refused":
                self.problem(f"{call} was rejected; its row is {outcome}")
            if call.left or call.complete or call.late or self._disturbed(call) or call.over_quota:
                continue
            if (
                call.status == 503
            ):  # a server that gets no CPU for 3 s rejects calls without a fault
                continue
            self.problem(f"broken: {call}; its row is {outcome}")

    def _during_a_fault(self, work):
        """Return whether there was a fault while a call or a job was in progress."""
        return any(_overlap(fault, work) for fault in self.faults)

    def _disturbed(self, work):
        """Return whether the server or a worker of a call or a job was killed or suspended during it."""
        return any(
            _overlap(fault, work) and {work.server, *WORKERS} & {*fault.servers}
            for fault in self.faults
        )

    def _check_jobs(self):
        for job in self.clients.jobs:
            if job.accepted and job.state == ENDED[job.kind]:
                counts = job.read.get("request_counts")
                if counts and counts["completed"] != job.calls and not self._during_a_fault(job):
                    self.problem(f"calls of a batch failed without a fault: {job}")
            elif job.accepted:
                rejected = "no control process speaks" in str(
                    job.read.get("error")
                )  # as a call's 503
                if job.state != "failed" or not (rejected or self._during_a_fault(job)):
                    self.problem(f"a job did not succeed: {job}")
            elif job.status != 503 and not self._disturbed(job):
                self.problem(f"a job was not accepted: {job}")

    def _check_background(self, app):
        """Compare what Celery has summed, sent and exported with the rows."""
        self.problems += map(str, compare(self.sessions, None, None).differences)
        runs = {
            row["id"]
            for row in self._query("SELECT * FROM interactions")
            if row["app_id"] == app["id"]
        }
        sent = Counter(each.id for each in self.receiver.received)
        events = [json.loads(each.body)["data"] for each in self.receiver.received]
        if (received := {event["interaction_id"] for event in events}) != runs:
            self.problem(f"webhooks had {received - runs} too many and lacked {runs - received}")
        if made := {row["id"] for row in self._query("SELECT id FROM webhook_events")} ^ {*sent}:
            self.problem(f"received and stored events differ in {made}")
        key, server = app["api_key"], self.servers[API[0]]
        path = "/v1/usage/exports"
        export = server.call(key, "POST", path, kind="interactions")
        path += f"/{export['id']}"
        eventually(lambda: server.call(key, "GET", path)["state"] == "ready", "no export is made")
        lines = server.request("GET", f"{path}/file", key).text.splitlines()
        exported = Counter(json.loads(line)["interaction"] for line in lines)
        if exported != Counter(runs):
            self.problem(f"an export and the rows of runs differ: {exported} {runs}")

    def _check_quota(self, app_id):
        accepted = {call.call_id for call in self.clients.sent if call.accepted}
        times = sorted(
            row["accepted_at"].timestamp()
            for row in self._rows()
            if row["app_id"] == app_id and row["call_id"] in accepted and row["outcome"] in BILLED
        )
        for first, last in zip(times, times[RPM:], strict=False):
            if last - first < 60:
                self.problem(f"{RPM + 1} accepted calls of the quota in {last - first:.3f} s")

    def logs(self):
        """Return the logs of all processes that ran."""
        folder = next(iter(self.servers.servers.values())).log_path.parent
        return {
            path.name: path.read_text(errors="replace")
            for path in (
                *sorted(folder.glob("*.log")),
                *(job.log_path for job in self.jobs.values()),
            )
        }

    def _check_logs(self):
        of_jobs = {job.log_path.name for job in self.jobs.values()}
        for name, text in self.logs().items():
            wrong = "the job [a-z]+ failed" if name in of_jobs else WRONG
            if found := re.search(wrong, text):
                at = found.start()
                self.problem(f"{found[0]} in {name}: {text[max(0, at - 300) : at + 3000]}")

    def report(self):
        """Return counts of what happened."""
        sent = Counter((call.kind, call.status, call.complete) for call in self.clients.sent)
        jobs = Counter((job.kind, job.status, job.state) for job in self.clients.jobs)
        lines = [f"{n:5d} {kind}: {status} complete={c}" for (kind, status, c), n in sent.items()]
        lines += [f"{n:5d} {kind}: {status} {state}" for (kind, status, state), n in jobs.items()]
        faults = Counter(fault.what.partition(" for ")[0] for fault in self.faults)
        lines = sorted(lines) + [f"{n:5d} times: {what}" for what, n in sorted(faults.items())]
        lines += [
            f"next tick after {len(taken)} times {what}: p50 {statistics.median(taken):.2f} s,"
            f" worst {max(taken):.2f} s"
            for what, taken in self.takeovers_s.items()
        ]
        return "\n".join(lines)


def _overlap(fault, work):
    return fault.began_s <= work.ended_s and (
        fault.ended_s is None or work.began_s <= fault.ended_s
    )


# --- the small disk -----------------------------------------------------------------------------------

FILLER = "filler"


@contextlib.contextmanager
def small_disk(folder):
    """Yield a folder on a disk of its own; None where this may mount none."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", folder]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no disk is filled: {done.stderr.strip()}")
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(disk):
    """Write to a disk until it is full."""
    with (disk / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


async def run(folder, minutes, seed, kind):
    """Make the faults; return the world after its checks."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        database_url = new_database(postgres, new_template(postgres))
        proxy = DatabaseProxy(database_url)
        await proxy.start()
        stack.push_async_callback(proxy.close)
        store = STORES[kind](folder, API)
        stack.push_async_callback(store.close)
        await store.start()
        receiver = Receiver()
        stack.callback(receiver.close)
        workers = {name: WorkerProcess(folder / f"{name}.txt") for name in WORKERS}
        for worker in workers.values():
            stack.callback(worker.close)
        (folder / "servers").mkdir()
        disk = stack.enter_context(small_disk(folder / "servers" / SMALL_DISK))
        worker_urls = ",".join(worker.url for worker in workers.values())
        webhooks = {"webhook_allowed_networks": "127.0.0.0/8"}
        settings = {"interaction_idle_timeout_s": IDLE_S, **webhooks}
        servers = SharedServers(folder / "servers", proxy.url, store.url, worker_urls, **settings)
        stack.callback(servers.close)
        engine = connect(database_url)
        stack.callback(engine.dispose)
        started = {**dict.fromkeys(CONTROL, "control"), **dict.fromkeys(API, "api")}
        (folder / "jobs").mkdir()
        urls = {"database_url": proxy.url, "redis_url": store.url}
        jobs = {
            name: JobProcess(action, folder=folder / "jobs", secret_key=SECRET, **urls, **webhooks)
            for name, action in JOB_PROCESSES.items()
        }
        for job in jobs.values():
            stack.callback(job.start().kill)
        await asyncio.to_thread(servers.start, redis_urls=store.urls, **started)
        plain = await asyncio.to_thread(servers["first"].new_app, name="plain")
        quota = await asyncio.to_thread(
            servers["first"].new_app, name="quota", contract={"rpm_limit": RPM}
        )
        await asyncio.to_thread(
            servers["first"].call,
            plain["tenant_key"],
            "POST",
            "/v1/webhooks",
            {"url": receiver.url, "events": ["interaction.finished"]},
        )
        keys = {
            kind: {"Authorization": f"Bearer {(quota if kind == 'quota' else plain)['api_key']}"}
            for kind in (*CALLS, *JOBS)
        }
        chance = random.Random(seed)
        clients = Clients({name: servers[name].url for name in API}, keys, chance)
        world = World(
            servers,
            store,
            proxy,
            workers,
            jobs,
            receiver,
            disk,
            clients,
            database_url,
            chance,
            session_factory(engine),
        )
        end_s = world.began_s + minutes * 60
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(clients.run(end_s))
                tasks.create_task(world.schedule(end_s))
            await world.check({"plain": plain, "quota": quota})
        except BaseException:
            show(world, seed)
            raise
        if world.problems:
            show(world, seed)
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
    parser.add_argument("--redis", choices=STORES, help="Only one kind, for all minutes.")
    given = parser.parse_args()
    kinds = [given.redis] if given.redis else [*STORES]
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="fairserve-faults-") as folder:
            world = asyncio.run(run(Path(folder), given.minutes / len(kinds), given.seed, kind))
        if world.problems:
            sys.exit(1)
        print(world.report())
        faults, calls, jobs = map(len, (world.faults, world.clients.sent, world.clients.jobs))
        print(
            f"seed {given.seed}, Redis {kind}: {faults} faults, {calls} calls, {jobs} jobs:"
            " all checks hold"
        )


if __name__ == "__main__":
    main()
