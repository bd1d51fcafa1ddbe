"""Files and batches over a database and each kind of store, with calls that a test answers."""

import asyncio
import contextlib
import functools
import json
import random
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import databases
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from program_calls import add_apps
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from until import settle, turn, until

from fairserve.engine.backoff import Backoff
from fairserve.platform.base.errors import (
    ConflictError,
    InsufficientQuotaError,
    InvalidRequestError,
    RateLimitedError,
    UnavailableError,
)
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.batches import Batch, BatchResult, File
from fairserve.platform.db.leases import RowLease, RowLeaseLostError
from fairserve.platform.server.recovery import end_claims
from fairserve.platform.serving import claims
from fairserve.platform.serving.batches import execution, repository
from fairserve.platform.serving.batches.execution import BatchExecution, BatchExecutionOptions
from fairserve.platform.serving.batches.repository import Result
from fairserve.platform.serving.batches.schemas import BatchCreate
from fairserve.platform.serving.batches.service import Batches, BatchOptions
from fairserve.platform.serving.files import service
from fairserve.platform.serving.files.repository import FileOwner
from fairserve.platform.serving.files.service import FileOptions, Files, delete_old
from fairserve.platform.serving.files.store import PART_BYTES, open_store

ENDPOINT = "/v1/chat/completions"
OWNER = FileOwner("t", "a")


class SlowClock:
    """A clock that advances by ``look_s`` seconds with each look, and with the time that passes."""

    def __init__(self, look_s):
        self._look_s, self._looks = look_s, 0

    def __call__(self):
        self._looks += 1
        return time.monotonic() + self._looks * self._look_s


class Calls:
    """Answers each call by its body's text; ``released`` ends the wait of those that are held."""

    def __init__(self, script=(), at_once=100):
        """``at_once`` calls are accepted at a time."""
        self.script, self.at_once = dict(script), at_once
        self.before_end = turn
        """Awaited by each accepted call before it ends."""
        self.made = Counter()
        self.released = asyncio.Event()
        self.running = self.most = 0

    async def make(self, principal, body):
        text = json.loads(body)["text"]
        self.made[text] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.running > self.at_once:
                raise RateLimitedError("parallel calls", headers={"Retry-After": "0"})
            if text.startswith("hold"):
                await self.released.wait()
            await self.before_end()
            answers = self.script.get(text)
            if answers:
                raise answers.pop(0)
            return {"said": text, "app": principal.app_id}
        finally:
            self.running -= 1


class World:
    """Servers on one database, whose clock a test moves."""

    def __init__(self, sessions, store):
        self.sessions, self.store = sessions, store
        self.ahead = timedelta()
        self.files = Files(sessions, store, now=self.now)
        self.calls = Calls()
        add_apps(sessions, "a", "b")

    def now(self):
        return utc_now() + self.ahead

    @asynccontextmanager
    async def server(self, calls=None, *, max_live=128, tenant_share=1 / 4, **options):
        execution = BatchExecutionOptions(**{"parallel_calls": 4, **options})
        made = BatchOptions(max_live=max_live, tenant_share=tenant_share, execution=execution)
        calls = {ENDPOINT: calls or self.calls}
        server = Batches(self.sessions, self.files, calls, made, now=self.now)
        server.start()
        try:
            yield server
        finally:
            await server.close(0)

    async def upload(self, *texts, owner=OWNER):
        calls = [
            {
                "custom_id": str(n),
                "method": "POST",
                "url": ENDPOINT,
                "body": {"text": text, "user": text[:1]},
            }
            for n, text in enumerate(texts)
        ]
        content = b"\n".join(json.dumps(call).encode() for call in calls)
        return await self.upload_bytes(content, owner)

    async def upload_bytes(self, content, owner=OWNER, **fields):
        fields = {"purpose": "batch", **fields}
        parts = [
            f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in fields.items()
        ]
        head = '--x\r\ncontent-disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n'
        body = b"".join([head.encode(), content, b"\r\n", *parts, b"--x--\r\n"])

        async def pieces():
            rng = random.Random(len(body))
            at = 0
            while at < len(body):
                size = rng.choice([1, 7, 1000, 100_000])
                yield body[at : at + size]
                at += size

        return await self.files.upload(owner, pieces(), b"x", None)

    async def create(self, server, *texts, owner=OWNER):
        file = await self.upload(*texts, owner=owner)
        query = BatchCreate(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        return (await server.create(owner, query)).id

    def batch(self, batch_id):
        with self.sessions() as session:
            return session.get(Batch, batch_id)

    async def ended(self, batch_id):
        await until(lambda: self.batch(batch_id).ended_at is not None)
        return self.batch(batch_id)

    def lines(self, file_id):
        content = b"".join(self.files.content(file_id))
        return {each["custom_id"]: each for each in map(json.loads, content.splitlines())}

    def rows(self, table):
        with self.sessions() as session:
            return session.query(table).count()


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(claims, "POLL_S", 0.02)
    monkeypatch.setattr(execution, "SAVE_S", 0.0)
    monkeypatch.setattr(execution, "BACKOFF", Backoff(0.001, 0.001))


@pytest.fixture
def world(sessions):
    return World(sessions, open_store("", sessions))


@pytest.fixture(scope="module")
def bucket():
    """Yield the URL of a folder in a bucket of a real S3 server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem().mkdir("results")
        yield "s3://results/of/fairserve"
    server.stop()


@pytest.fixture(params=["database", "folder", "bucket"])
def stored(request, sessions, tmp_path):
    url = {"database": "", "folder": f"file://{tmp_path}/files"}.get(request.param)
    return World(
        sessions,
        open_store(request.getfixturevalue("bucket") if url is None else url, sessions),
    )


async def test_a_batch_in_each_store(stored):
    async with stored.server() as server:
        texts = [f"{number}" for number in range(20)] + ["z" * 300_000]
        batch = await stored.ended(await stored.create(server, *texts))
        assert (batch.state, batch.completed, batch.failed) == ("completed", 21, 0)
        answers = stored.lines(batch.output_file_id)
        assert [each["response"]["body"]["said"] for each in answers.values()] == texts
        await until(lambda: stored.rows(BatchResult) == 0)


async def test_a_store_keeps_what_was_written_and_discards_the_rest(stored):
    content = random.Random(1).randbytes(3 * PART_BYTES + 17)
    file = await stored.upload_bytes(content)
    assert file.size_bytes == len(content)
    assert b"".join(stored.files.content(file.id)) == content
    file_id = await asyncio.to_thread(stored.files.reserve, OWNER, "batch", 10)
    writer = await asyncio.to_thread(stored.store.writer, file_id)
    await asyncio.to_thread(writer.write, b"half of it")
    await asyncio.to_thread(writer.discard)
    stored.store.delete("file_unknown")
    for gone in (file_id, file.id):
        await asyncio.to_thread(stored.store.delete, gone)
        with suppress(FileNotFoundError):
            assert b"".join(stored.files.content(gone)) == b""


@databases.ON_BOTH
async def test_at_the_end_of_its_window_a_batch_keeps_what_it_has(world):
    async with world.server() as server:
        batch_id = await world.create(server, "one", "two", *["hold"] * 9)
        await until(lambda: world.batch(batch_id).completed == 2)
        world.ahead = timedelta(hours=24)
        server._live[batch_id].execution._woken.set()  # its timer runs in real time
        batch = await world.ended(batch_id)
    assert (batch.state, batch.completed, batch.failed) == ("expired", 2, 9)
    assert list(world.lines(batch.output_file_id)) == ["0", "1"]
    errors = world.lines(batch.error_file_id)
    assert list(errors) == [str(number) for number in range(2, 11)]
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}


@databases.ON_BOTH
async def test_a_batch_of_a_dead_server_is_continued_once_by_one_of_several(world):
    """The first server is cut off in the middle; two others compete for its batch."""
    texts = [*(f"{n}" for n in range(10)), *(f"hold {n}" for n in range(10))]
    async with world.server() as first:
        batch_id = await world.create(first, *texts)
        await until(lambda: world.batch(batch_id).completed == 10)
        await until(lambda: world.calls.running == 4)
        first._task.cancel()  # it renews no lease from now on, and does not know it
        dead = first._live[batch_id].execution
        world.ahead += claims.LEASE + timedelta(seconds=1)
        others = Calls()
        others.released.set()
        async with world.server(others) as _, world.server(others) as _:
            batch = await world.ended(batch_id)
        world.calls.released.set()
        await until(lambda: not first._live)
    assert (batch.state, batch.completed, batch.failed) == ("completed", 20, 0)
    assert len(world.lines(batch.output_file_id)) == 20
    assert set(others.made) == set(texts[10:]), "lines with a result are not called again"
    assert set(others.made.values()) == {1}, "one server has the batch"
    with pytest.raises(RowLeaseLostError):
        repository.save(world.sessions, dead.batch, [Result(99, True, b"late")], world.now())
    assert world.batch(batch_id).completed == 20


async def test_the_only_server_continues_batches_at_once(world, monkeypatch):
    monkeypatch.setattr(repository, "LEASE", timedelta(minutes=30))
    async with world.server() as first:
        batch_id = await world.create(first, "hold")
        await until(lambda: world.calls.running)
        first._task.cancel()
        end_claims(world.sessions)
        async with world.server(Calls()) as second:
            await until(lambda: second._live)
            world.calls.released.set()
            await until(lambda: not first._live)
    assert world.batch(batch_id).attempt == 2


@databases.ON_BOTH
def test_a_result_is_written_once(world):
    now = world.now()
    with world.sessions.begin() as session:
        session.add(
            Batch(
                id="batch_1",
                tenant_id="t",
                app_id="a",
                endpoint=ENDPOINT,
                input_file_id="file_1",
                completion_window="24h",
                state="in_progress",
                attempt=0,
                total=2,
                completed=0,
                failed=0,
                result_bytes=0,
                created_at=now,
                expires_at=now + timedelta(hours=1),
            )
        )
    places = SharedLimit(1, 1)
    batch = repository.claim(world.sessions, [], places, now)
    assert batch.id == "batch_1"
    assert repository.claim(world.sessions, [], places, now) is None, "it has a lease"
    first = [Result(1, True, b"abc")]
    repository.save(world.sessions, batch, first, now)
    repository.save(world.sessions, batch, [*first, Result(2, False, b"de")], now)
    saved = world.batch("batch_1")
    assert (saved.completed, saved.failed, saved.result_bytes) == (1, 1, 5)
    repository.release(world.sessions, batch)
    assert repository.claim(world.sessions, [], places, now).attempt == 2


async def test_calls_that_are_not_accepted_are_sent_again_a_few_at_a_time(world):
    soon = {"Retry-After": "0"}
    world.calls.script = {
        **{f"{n}": [RateLimitedError("rpm", headers=soon)] for n in range(4)},
        "5": [UnavailableError("full", code="queue_full", headers=soon)],
        "6": [UnavailableError("worker lost", headers=soon)],
        "7": [InsufficientQuotaError("spent", headers={"Retry-After": str(10**6)})],
        "8": [InsufficientQuotaError("spent until soon", headers=soon)],
    }
    async with world.server() as server:
        batch = await world.ended(await world.create(server, *map(str, range(9))))
    assert (batch.completed, batch.failed) == (8, 1)
    assert {text for text, times in world.calls.made.items() if times == 2} == set("0123568")
    (error,) = world.lines(batch.error_file_id).values()
    assert error["response"]["status_code"] == 429, "its budget is spent for longer than its window"
    assert error["custom_id"] == "7"


async def test_a_user_with_a_long_wait_holds_no_lines_of_others(world, monkeypatch):
    ahead_s = [0.0]
    made = functools.partial(BatchExecution, clock=lambda: time.monotonic() + ahead_s[0])
    monkeypatch.setattr("fairserve.platform.serving.batches.service.BatchExecution", made)
    until_noon, of_user = {"Retry-After": "3600"}, {"scope": "user"}
    lines = [f"{user}{number}" for number in range(30) for user in "ab"]
    of_a = {each for each in lines if each.startswith("a")}
    spent = InsufficientQuotaError("spent", headers=until_noon, details=of_user)
    world.calls.script = {each: [spent] for each in of_a}
    async with world.server() as server:
        batch_id = await world.create(server, *lines)
        await until(lambda: world.batch(batch_id).completed == 30)
        tried = of_a & world.calls.made.keys()
        assert 0 < len(tried) < 10, "those in flight when the first was rejected"
        world.calls.script.clear()
        ahead_s[0] = 3600.0
        server._live[batch_id].execution._woken.set()  # its timer runs in real time
        batch = await world.ended(batch_id)
    assert (batch.state, batch.completed, batch.failed) == ("completed", 60, 0)
    assert world.calls.made == Counter(lines) + Counter(tried)


async def test_a_rejection_halves_the_calls_in_flight(world):
    """With four at a time, each accepted call would cost three rejections."""
    calls = Calls(at_once=1)
    async with world.server(calls) as server:

        async def whole_window():
            """Wait until all lines of the window have been sent, so that all others are rejected."""
            (live,) = server._live.values()
            run = live.execution
            await until(lambda: len(run._sent) >= run._window or (run._read_all and not run._ready))
            await settle()

        calls.before_end = whole_window
        batch = await world.ended(await world.create(server, *map(str, range(20))))
    assert batch.completed == 20
    assert sum(calls.made.values()) < 60


async def test_a_hold_that_ends_between_two_looks_at_the_clock_is_over(world, monkeypatch):
    """Each look at the clock takes a while, as on a busy machine."""
    monkeypatch.setattr(execution, "BACKOFF", Backoff(0.05, 0.05))
    for look_ms in range(2, 40, 2):
        clock = SlowClock(look_ms / 1000)
        made = functools.partial(BatchExecution, clock=clock)
        monkeypatch.setattr("fairserve.platform.serving.batches.service.BatchExecution", made)
        world.calls.script = {"0": [RateLimitedError("rpm", headers={"Retry-After": "0"})]}
        async with world.server() as server:
            batch = await world.ended(await world.create(server, "0"))
        assert batch.completed == 1


async def test_calls_rejected_together_lengthen_the_pause_once(world, monkeypatch):
    pauses = []

    class Recorded(Backoff):
        def pause_s(self, failures, rng=None):
            pauses.append(failures)
            return super().pause_s(failures, rng)

    monkeypatch.setattr(execution, "BACKOFF", Recorded(0.001, 0.001))
    soon = {"Retry-After": "0"}
    world.calls.script = {f"{n}": [RateLimitedError("rpm", headers=soon)] for n in range(4)}
    world.calls.script["3"] *= 2
    released = asyncio.Event()

    async def together():
        if world.calls.running == 4:
            released.set()
        await released.wait()

    world.calls.before_end = together
    async with world.server() as server:
        await world.ended(await world.create(server, *map(str, range(4))))
    assert sorted(pauses) == [1, 1, 1, 1, 2]


async def test_a_batch_that_fills_the_tenants_space_ends_with_what_it_has(world, monkeypatch):
    monkeypatch.setattr(execution, "BOUND_CHECK_S", 0.0)
    async with world.server() as server:
        batch_id = await world.create(server, "one", *["hold"] * 9)
        await until(lambda: world.batch(batch_id).completed == 1)
        used = world.files.options
        world.files.options = type(used)(max_bytes_per_tenant=10)
        server._live[batch_id].execution._woken.set()
        batch = await world.ended(batch_id)
    assert (batch.state, batch.errors[0]["code"]) == ("failed", "file_space_full")
    assert list(world.lines(batch.output_file_id)) == ["0"]


async def test_an_end_that_is_written_again_lists_each_missing_line_once(world, monkeypatch):
    """The database is away once, in the transaction that ends an expired batch."""
    end, failures = RowLease.end, [OperationalError("away", {}, Exception())]

    def failing(lease, session, **values):
        ended = end(lease, session, **values)
        if failures:
            raise failures.pop()
        return ended

    monkeypatch.setattr(RowLease, "end", failing)
    monkeypatch.setattr(execution, "DATABASE_BACKOFF", Backoff(0.001, 0.001))
    async with world.server() as server:
        batch_id = await world.create(server, "one", *["hold"] * 3)
        await until(lambda: world.batch(batch_id).completed == 1)
        world.ahead = timedelta(hours=24)
        server._live[batch_id].execution._woken.set()  # its timer runs in real time
        batch = await world.ended(batch_id)
    assert (batch.state, batch.completed, batch.failed, failures) == ("expired", 1, 3, [])
    assert list(world.lines(batch.error_file_id)) == ["1", "2", "3"]
    assert world.rows(File) == 3, "the first attempt's files are gone"


@pytest.mark.parametrize("stops", [False, True])
async def test_an_end_whose_commit_is_not_confirmed_keeps_its_files(world, monkeypatch, stops):
    """The connection breaks after the commit; the server may stop at the same time."""
    end, ends = RowLease.end, []

    def lost(session):
        if stops:
            ends[0].pause()
        raise OperationalError("away", {}, Exception())

    def unconfirmed(lease, session, **values):
        if not ends:
            ends.append(server._live[batch_id].execution)
            event.listen(session, "after_commit", lost)
        return end(lease, session, **values)

    monkeypatch.setattr(RowLease, "end", unconfirmed)
    monkeypatch.setattr(execution, "DATABASE_BACKOFF", Backoff(0.001, 0.001))
    async with world.server() as server:
        batch_id = await world.create(server, "one")
        await until(lambda: ends and not server._live)
    batch = world.batch(batch_id)
    assert (batch.state, world.rows(File)) == ("completed", 2)
    assert list(world.lines(batch.output_file_id)) == ["0"]


async def test_a_batch_whose_files_cannot_be_written_is_finished_later(world, monkeypatch):
    """The store fails in the middle of the output; the next claim finds all results."""
    write = world.store.writer

    def failing(file_id):
        writer = write(file_id)

        def fail(data):
            raise OSError("no space left")

        writer.write = fail
        return writer

    async with world.server() as server:
        batch_id = await world.create(server, "one", "hold")
        await until(lambda: world.batch(batch_id).completed == 1)
        monkeypatch.setattr(world.store, "writer", failing)
        world.calls.released.set()
        await until(lambda: not server._live)
        assert world.batch(batch_id).state == "finalizing"
        assert world.rows(File) == 1, "the half of the output is gone"
        monkeypatch.setattr(world.store, "writer", write)
        world.ahead = timedelta(minutes=2)
        batch = await world.ended(batch_id)
    assert (batch.state, batch.attempt, world.rows(File)) == ("completed", 2, 2)
    assert len(world.lines(batch.output_file_id)) == 2
    assert set(world.calls.made.values()) == {1}


async def test_tenants_take_turns_for_the_places_of_running_batches(world):
    add_apps(world.sessions, "c", tenant="u")
    async with world.server(max_live=4, tenant_share=0.5) as server:
        greedy = [await world.create(server, "hold") for _ in range(6)]
        await until(lambda: len(server._live) == 2)
        other = await world.create(server, "quick", owner=FileOwner("u", "c"))
        assert (await world.ended(other)).state == "completed"
        await until(lambda: len(server._live) == 2)
        world.calls.released.set()
        for batch_id in greedy:
            await world.ended(batch_id)


async def test_tenants_that_fill_the_space_leave_some(world):
    crowd, last = "vwxy", "z"
    for tenant in (*crowd, last):
        add_apps(world.sessions, f"of-{tenant}", tenant=tenant)
    options = FileOptions(max_bytes_per_tenant=250, max_bytes_in_all=1000)
    files = Files(world.sessions, world.store, options, world.now)
    held = Counter()
    for tenant in crowd:
        with contextlib.suppress(RateLimitedError):
            for _ in range(100):
                owner = FileOwner(tenant, f"of-{tenant}")
                await asyncio.to_thread(files.reserve, owner, "batch", 10)
                held[tenant] += 10
    assert held["v"] == 250, "alone it has the bound of a tenant"
    await asyncio.to_thread(files.reserve, FileOwner(last, f"of-{last}"), "batch", 50)


@databases.ON_BOTH
async def test_reservations_end_with_the_server_that_made_them(world):
    options = FileOptions(max_per_tenant=2, max_bytes_per_tenant=1000)
    killed = Files(world.sessions, world.store, options, world.now)
    kept = await completed(killed, "kept")
    lost = await asyncio.to_thread(killed.reserve, OWNER, "batch", 900)
    with pytest.raises(RateLimitedError):
        await asyncio.to_thread(killed.reserve, OWNER, "batch", 1)
    server = Files(world.sessions, world.store, options, world.now)
    await asyncio.to_thread(end_claims, world.sessions)
    await asyncio.to_thread(server.reserve, OWNER, "batch", 900)
    assert delete_old(world.sessions, world.store, world.now()) == 1
    with world.sessions() as session:
        assert session.get(File, lost) is None
        assert session.get(File, kept).state == "ready"


@databases.ON_BOTH
async def test_a_reservation_lasts_while_its_file_is_written(world, monkeypatch):
    monkeypatch.setattr(service, "KEEP_S", 0.0)
    file_id = await asyncio.to_thread(world.files.reserve, OWNER, "batch", 10)
    writer = await asyncio.to_thread(world.files.writer, file_id)
    for _ in range(2):
        world.ahead += 0.9 * service.RESERVED
        await asyncio.to_thread(writer.write, b"x")
        assert delete_old(world.sessions, world.store, world.now()) == 0
    world.ahead += 1.1 * service.RESERVED
    assert delete_old(world.sessions, world.store, world.now()) == 1
    assert world.rows(File) == 0


async def test_a_reservation_ends_with_its_upload_while_the_database_is_away(world, monkeypatch):
    files = Files(world.sessions, world.store, FileOptions(max_per_tenant=1), world.now)
    lost = await asyncio.to_thread(files.reserve, OWNER, "batch", 10)
    writer = await asyncio.to_thread(files.writer, lost)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "discard", lambda: 1 / 0)
        await asyncio.to_thread(files.drop, lost, writer)
    await asyncio.to_thread(files.reserve, OWNER, "batch", 10)


async def completed(files, name):
    """Return the id of a complete file."""
    file_id = await asyncio.to_thread(files.reserve, OWNER, "batch", 10)
    with files._sessions.begin() as session:
        files.complete(session, file_id, name, 10)
    return file_id


@databases.ON_BOTH
async def test_old_files_and_batches_are_deleted(world):
    async with world.server() as server:
        batch = await world.ended(await world.create(server, "one"))
        held = await world.create(server, "hold")
        in_use = world.batch(held).input_file_id
        lost = await asyncio.to_thread(world.files.reserve, OWNER, "batch", 10)
        assert delete_old(world.sessions, world.store, world.now()) == 0
        later = world.now() + timedelta(days=31)
        assert delete_old(world.sessions, world.store, later) == 3
        with world.sessions() as session:
            assert [file.id for file in session.query(File)] == [in_use]
            assert session.get(File, lost) is None
        with pytest.raises(ConflictError):
            await world.files.delete(OWNER, in_use)
        await until(lambda: not world.batch(batch.id).result_bytes)
        with world.sessions.begin() as session:
            session.add(BatchResult(batch_id=batch.id, line=1, succeeded=True, data=b"left"))
            session.get(Batch, batch.id).result_bytes = 4
        assert repository.delete_leftovers(world.sessions) == 1
        assert (world.rows(BatchResult), world.batch(batch.id).result_bytes) == (0, 0)
        with world.sessions.begin() as session:
            assert repository.delete_before(session, later) == 1
        assert world.batch(batch.id) is None
        assert world.batch(held) is not None


@databases.ON_BOTH
async def test_files_that_the_store_refuses_to_delete_hold_up_no_others(world, monkeypatch):
    refused = {await completed(world.files, f"refused {n}") for n in range(service.MAX_FAILED + 1)}
    remove = world.store.delete

    def delete(file_id):
        if file_id in refused:
            raise PermissionError("the object is locked")
        remove(file_id)

    def delete_some():
        return delete_old(world.sessions, world.store, world.now())

    monkeypatch.setattr(world.store, "delete", delete)
    world.ahead = timedelta(days=31)
    with pytest.raises(PermissionError):  # the store may be away
        delete_some()
    world.ahead = timedelta(0)
    for number in range(20):
        await completed(world.files, f"old {number}")
    world.ahead = timedelta(days=31)
    assert delete_some() == 20
    assert delete_some() == 0  # not tried again at once
    world.ahead += service.TRY_AGAIN
    with pytest.raises(PermissionError):
        delete_some()
    refused.clear()
    world.ahead += service.TRY_AGAIN
    assert delete_some() == service.MAX_FAILED + 1
    assert world.rows(File) == 0


async def test_a_file_that_retention_deletes_is_no_input_of_a_new_batch(world, monkeypatch):
    file = await world.upload("one", "two")
    query = BatchCreate(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    world.ahead = timedelta(days=31)
    loop, remove = asyncio.get_running_loop(), world.store.delete
    created = []

    async with world.server() as server:

        def interrupted(file_id):
            created.append(asyncio.run_coroutine_threadsafe(server.create(OWNER, query), loop))
            with suppress(InvalidRequestError):
                created[-1].result()
            remove(file_id)

        monkeypatch.setattr(world.store, "delete", interrupted)
        await asyncio.to_thread(delete_old, world.sessions, world.store, world.now())
        with pytest.raises(InvalidRequestError, match="no such file"):
            created[0].result()


async def test_a_rejected_upload_stops_before_its_end(world):
    sent = []

    async def body():
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for number in range(10_000):
            sent.append(number)
            yield b"y" * 65_536

    world.files.options = type(world.files.options)(max_bytes=1_000_000)
    with pytest.raises(Exception, match="over 1,000,000 bytes"):
        await world.files.upload(OWNER, body(), b"x", None)
    assert len(sent) == 16
    assert world.rows(File) == 0
