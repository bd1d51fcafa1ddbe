"""Several servers over one database: each program and each response is at one of them at a time.

Batches: ``test_database_batches.py``. A server that is killed renews no lease and does not know it.
"""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace

import databases
import orjson
import pytest
from control_world import World
from program_calls import Calls, add_apps, declare, node
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import OperationalError
from until import until

from fairserve.engine.backoff import Backoff
from fairserve.interactions.programs.program import parse_program
from fairserve.platform.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from fairserve.platform.base.turns import Turns
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import App
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.db.responses import (
    ConversationItem,
    StoredConversation,
    StoredResponse,
)
from fairserve.platform.fleet.models import Models
from fairserve.platform.server.recovery import end_claims
from fairserve.platform.serving import claims
from fairserve.platform.serving.interactions.service import Interactions, RunParts
from fairserve.platform.serving.programs import repository, service
from fairserve.platform.serving.programs.repository import ProgramKey
from fairserve.platform.serving.programs.schemas import ProgramOut
from fairserve.platform.serving.programs.service import ProgramOptions, Programs
from fairserve.platform.serving.programs.task_calls import ProgramOwner
from fairserve.platform.serving.responses import conversations, endpoint, store
from fairserve.platform.serving.responses import repository as repository_of_responses
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.repository import ResponseKey
from fairserve.platform.serving.responses.service import Responses
from fairserve.platform.serving.responses.store import ResponseStore
from fairserve.platform.tenancy.auth import Principal

pytestmark = databases.ON_BOTH
KEY = ProgramKey("t", "a", "run")
HOLD = {"one": ["hold"] * 9, "two": ["hold"] * 9}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(claims, "POLL_S", 0.02)
    for module in (repository, service, store):
        monkeypatch.setattr(module, "LEASE", timedelta(minutes=30))


@pytest.fixture
def apps(sessions):
    add_apps(sessions, "a", "b")
    return sessions


def expire(sessions, model, left_s=-1):
    """Let the leases run out, or set what is left of them."""
    with sessions.begin() as session:
        session.execute(update(model).values(lease_until=utc_now() + timedelta(seconds=left_s)))


# --- programs -----------------------------------------------------------------------------------------


class Server:
    """The programs of a server, with control and calls of its own."""

    def __init__(self, sessions, script, world=None, **options):
        self.sessions, self.world = sessions, world or World()
        models = Models(lambda worker: True)
        models.set_expected(["m"])
        self.calls = Calls(script)
        options = ProgramOptions(**options)
        self.programs = Programs(sessions, self.world.control, models, self.calls, options)

    async def submit(self, *nodes, key=KEY):
        plain = declare(*nodes)
        return await self.programs.submit(ProgramOwner(key, "ann"), plain, parse_program(plain), 10)

    async def die(self):
        """Renew and claim no more; a renewal in a thread ends before."""
        self.programs._task.cancel()
        await asyncio.gather(self.programs._task, return_exceptions=True)

    async def close(self):
        await self.programs.close(grace_s=0.0)
        await self.world.control.close()


@pytest.fixture
async def start(apps):
    made = []

    async def start(script=HOLD, **options):
        made.append(Server(apps, script, **options))
        await made[-1].programs.start()
        return made[-1]

    yield start
    for server in made:
        await server.close()


def saved(sessions, key=KEY):
    return repository.find(sessions, key)


async def ended(sessions, key=KEY):
    await until(lambda: saved(sessions, key).ended_at)
    return saved(sessions, key)


NODES = (node("none"), node("one", "{{none.output}}"), node("two", "after {{one.output}}"))


async def test_a_program_of_a_dead_server_is_continued_once_by_one_of_several(apps, start):
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.die()
    others = [await start(), await start()]
    for other in others:
        assert not await other.programs._claim(), "its lease is valid"
    expire(apps, ProgramRow)
    await until(lambda: any(other.calls.under_way for other in others))
    first.calls.released.set()
    await until(lambda: not first.programs.is_live(KEY))
    assert saved(apps).steps["tasks"]["one"]["state"] == "running", "its late result is not saved"
    view = await first.world.control.interaction("a/run")
    assert view.ended_at is None, "the run is not closed under the other server"
    for other in others:
        other.calls.released.set()
    found = await ended(apps)
    assert (found.state, found.attempt) == ("complete", 2)
    assert sorted(others[0].calls.made + others[1].calls.made) == [
        *(("one", 2, ("none",)), ("two", 1, ("one~2",)))
    ]


async def test_a_server_that_lost_a_program_stops_its_calls(apps, start):
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    events = []
    first.programs.watch(KEY, events.append, "t")
    with apps.begin() as session:
        session.execute(update(ProgramRow).values(attempt=7))
    await until(lambda: not first.programs.is_live(KEY))
    await until(lambda: not first.calls.under_way)
    assert saved(apps).state == "running"
    assert isinstance(events[-1], ProgramOut), "its followers are not left waiting"


async def test_a_run_that_outlived_its_server_in_control_continues(apps, start):
    first, second = await start(), await start({})
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await second.world.control.open_interaction("a/run", "t", "a", "ann", declared=True)
    await first.close()
    assert (await ended(apps)).state == "complete"


async def test_the_run_of_a_program_that_cannot_continue_ends(apps, start):
    """Control outlived the server, and has the run, which would never expire."""
    first, second = await start(), await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await second.world.control.open_interaction("a/run", "t", "a", "ann", declared=True)
    await first.die()
    with apps.begin() as session:
        session.execute(update(ProgramRow).values(declaration={"nodes": "none"}))
    expire(apps, ProgramRow)
    assert (await ended(apps)).state == "failed"
    assert (await second.world.control.interaction("a/run")).state == "aborted"


async def test_a_claim_that_cannot_be_read_now_is_repeated_after_its_lease(
    apps, start, monkeypatch
):
    first, second = await start(), await start({})
    load, away = second.programs._load, asyncio.Event()

    def failing(key):
        if not away.is_set():
            away.set()
            raise OperationalError("away", {}, Exception())
        return load(key)

    monkeypatch.setattr(second.programs, "_load", failing)
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.close()
    await until(away.is_set)
    assert not await second.programs._claim()
    expire(apps, ProgramRow)
    assert (await ended(apps)).state == "complete"


async def test_a_program_that_is_read_after_its_lease_runs_at_its_new_server_only(
    apps, start, monkeypatch
):
    """A database that answers slowly: another server claims the program before this one has read it."""
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.die()
    slow = await start()
    await slow.die()
    load, reading = slow.programs._load, threading.Event()
    read = threading.Event()

    def held(key):
        reading.set()
        read.wait()
        return load(key)

    monkeypatch.setattr(slow.programs, "_load", held)
    expire(apps, ProgramRow)
    claiming = asyncio.create_task(slow.programs._claim())
    await until(reading.is_set)
    expire(apps, ProgramRow)
    other = await start()
    await until(lambda: other.calls.under_way)
    read.set()
    await claiming
    assert not slow.programs.is_live(KEY)
    for server in (other, slow, first):
        server.calls.released.set()
    assert ((await ended(apps)).attempt, slow.calls.made) == (3, [])


def hold_opening(control, monkeypatch):
    """Let no run open before the returned event is set, as while a server is cut off from Redis."""
    there, opening = asyncio.Event(), control.open_interaction

    async def held(*args, **more):
        await there.wait()
        return await opening(*args, **more)

    monkeypatch.setattr(control, "open_interaction", held)
    return there


async def test_a_program_whose_run_is_not_open_yet_stays_with_its_server(apps, start, monkeypatch):
    first = await start({})
    connected = hold_opening(first.world.control, monkeypatch)
    submitting = asyncio.create_task(first.submit(*NODES))
    await until(lambda: saved(apps))

    def renewed():
        with apps() as session:
            left = session.scalars(select(ProgramRow)).one().lease_until - utc_now()
            return left > timedelta(minutes=20)

    # A claim that began before the program was there has ended once its lease was renewed.
    expire(apps, ProgramRow, left_s=60)
    await until(renewed)
    expire(apps, ProgramRow)
    await until(renewed)
    connected.set()
    await submitting
    assert (await ended(apps)).attempt == 1


@pytest.mark.parametrize("released", [False, True])
async def test_a_program_that_another_server_has_continued_is_accepted(
    apps, start, monkeypatch, released
):
    first = await start()
    connected = hold_opening(first.world.control, monkeypatch)
    submitting = asyncio.create_task(first.submit(*NODES))
    await until(lambda: saved(apps))
    first.programs._task.cancel()  # it is suspended
    second = await start(world=first.world)
    expire(apps, ProgramRow)
    await until(lambda: second.calls.under_way)
    if released:
        second.calls.released.set()
        await ended(apps)
    connected.set()
    view = await submitting
    assert view.state == ("complete" if released else "open")
    second.calls.released.set()
    assert ((await ended(apps)).state, first.calls.made) == ("complete", [])


async def test_a_server_that_stops_hands_its_programs_over(apps, start):
    first, second = await start(), await start({})
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.close()
    assert (await ended(apps)).state == "complete"
    assert second.calls.made[0] == ("one", 2, ("none",))


async def test_programs_wait_for_room(apps, start):
    first, second = await start(), await start(max_live=2)
    others = [KEY._replace(run_id=name) for name in ("1", "2")]
    for key in others:
        await first.submit(node("one"), key=key)
    await second.submit(node("one"))
    await first.close()
    await until(lambda: len(second.programs._live) == 2)
    assert not await second.programs._claim()
    assert sorted(saved(apps, key).attempt for key in others) == [1, 2], "one of them waits"
    second.calls.released.set()
    for key in others:
        assert (await ended(apps, key)).state == "complete"


async def wait_for_cancel(server, cancelling):
    """Let the calls of a server end once it cancels its program, as control would have them end."""
    cancelling = asyncio.create_task(cancelling)
    await until(lambda: server.programs._live[KEY].execution.reason)
    server.calls.released.set()
    await cancelling


@pytest.mark.parametrize("of_user", [False, True])
async def test_a_program_is_cancelled_through_another_server(apps, start, of_user):
    first, second = await start(), await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    assert await second.programs.runs_elsewhere(KEY)
    assert not await second.programs.runs_elsewhere(KEY._replace(app="b"))
    shown = await second.programs.view(KEY)
    assert {each.id: each.state for each in shown.nodes} == {
        "none": "done",
        "one": "running",
        "two": "waiting",
    }
    other = second.programs
    cancel = other.cancel_of_user("enough", "t", "ann") if of_user else other.cancel(KEY, "enough")
    await wait_for_cancel(first, cancel)
    found = saved(apps)
    assert (found.state, found.reason) == ("cancelled", "enough")
    assert not await second.programs.runs_elsewhere(KEY)
    await second.programs.cancel(KEY)


async def test_a_cancellation_that_nobody_confirms_is_done_by_the_next_server(apps, start):
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.die()
    second = await start(cancel_wait_s=0.4)
    with pytest.raises(UnavailableError, match="not confirmed"):
        await second.programs.cancel(KEY, "enough")
    expire(apps, ProgramRow)
    found = await ended(apps)
    assert (found.state, found.reason, second.calls.made) == ("cancelled", "enough", [])


async def test_programs_of_an_app_that_another_server_suspended_end(apps, start):
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    with apps.begin() as session:
        session.get(App, "a").suspended_at = utc_now()
    await until(lambda: first.programs._live[KEY].execution.reason)
    first.calls.released.set()
    found = await ended(apps)
    assert (found.state, found.reason) == ("cancelled", "its app is suspended")


async def test_the_only_server_continues_programs_at_once(apps, start):
    first = await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    await first.die()
    end_claims(apps)
    second = await start({})
    assert second.programs.is_live(KEY), "it has them before it is started"
    assert (await ended(apps)).state == "complete"


async def test_a_run_shows_and_guards_the_program_of_another_server(apps, start):
    first, second = await start(), await start()
    await first.submit(*NODES)
    await until(lambda: first.calls.under_way)
    # As if both had one control.
    await second.world.control.open_interaction("a/run", "t", "a", "ann", declared=True)
    await second.world.control.open_interaction("a/calls", "t", "a", "ann")
    parts = RunParts(second.world.control, apps, None, second.programs, Turns(1))
    runs = Interactions(parts, "t", "a")
    assert (await runs.get("run")).program.state == "running"
    assert (await runs.get("calls")).program is None
    with pytest.raises(ConflictError, match="ends by itself"):
        await runs.close("run")
    await wait_for_cancel(first, runs.cancel("run"))
    assert (saved(apps).state, saved(apps).reason) == ("cancelled", "cancelled by its client")
    await runs.cancel("calls")
    assert (await runs.get("calls")).state == "cancelled"


# --- responses ----------------------------------------------------------------------------------------

PRINCIPAL = Principal("app", "t", "a", key_id="", actor="key")


class Writer:
    """The writer of a response whose output is one text."""

    error, started = None, True

    def __init__(self, number):
        call = SimpleNamespace(tenant="t", app="a", user="ann")
        self.checked = SimpleNamespace(call=call, run_id="r", call_id="c")
        self._id = f"resp_{number}"

    def response(self, status):
        return {"id": self._id, "status": status, "background": True, "output": []}

    def failed(self, error):
        return self.response("failed")


class Producer:
    """A call that ends when it is released."""

    succeeded = False

    def __init__(self, endpoint):
        self.endpoint, self.released = endpoint, asyncio.Event()
        self.stopped = False

    async def produce(self, buffer):
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        writer = self.endpoint.writer
        end = writer.response("completed")
        self.stored = await self.endpoint._store_end(writer.checked, end)
        buffer.start(200, {})
        self.succeeded = True


class Completions:
    """Makes calls in the background, numbered over all servers."""

    made = 0

    async def producer(self, endpoint, raw, headers, principal, *, max_wait_s):
        Completions.made += 1
        endpoint.writer = Writer(Completions.made)
        self.last = Producer(endpoint)
        return self.last


class ResponseServer:
    """The responses of a server."""

    def __init__(self, sessions):
        self.completions = Completions()
        hasher = SimpleNamespace(candidates=lambda user: [user])
        kept = ResponseStore(sessions, hasher, Conversations(sessions))
        decisions = SimpleNamespace(check_size=lambda *sizes: None, headers=lambda checked: {})
        self.service = Responses(self.completions, decisions, kept)
        self.service.start()

    async def begin(self, **fields):
        body = {"model": "m", "input": "x", "background": True, **fields}
        answer = await self.service.create(orjson.dumps(body), {}, PRINCIPAL)
        return orjson.loads(answer.body)["id"]

    async def status(self, response_id):
        return (await self.service.get(PRINCIPAL, response_id))["status"]


@pytest.fixture
async def servers(apps):
    made = [ResponseServer(apps), ResponseServer(apps)]
    yield made
    for server in made:
        await server.service.close()


async def test_a_response_of_another_server_is_read_until_its_end(servers):
    first, second = servers
    name = await first.begin()
    await first.service._renew()
    assert (await first.status(name), await second.status(name)) == ("in_progress", "queued")
    first.completions.last.released.set()
    await until(lambda: not first.service.running)
    assert first.completions.last.stored
    assert await second.status(name) == "completed"
    with pytest.raises(InvalidRequestError, match="has ended"):
        await second.service.cancel(PRINCIPAL, name)


async def test_a_response_of_a_dead_server_fails_once(apps, servers):
    first, second = servers
    name = await first.begin()
    first.service._task.cancel()
    expire(apps, StoredResponse)
    failed = await second.service.get(PRINCIPAL, name)
    assert failed["status"] == "failed"
    assert "stopped" in failed["error"]["message"]
    first.completions.last.released.set()
    await until(lambda: not first.service.running)
    assert not first.completions.last.stored, "its end is not changed any more"
    assert await second.service.get(PRINCIPAL, name) == failed


async def test_the_only_server_does_not_wait_for_the_leases_of_responses(apps, servers):
    first, second = servers
    name = await first.begin()
    first.service._task.cancel()
    end_claims(apps)
    assert await second.status(name) == "failed"


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_response_is_cancelled_or_deleted_through_another_server(servers, deleted):
    first, second = servers
    name = await first.begin()
    if deleted:
        await second.service.delete(PRINCIPAL, name)
    else:
        assert (await second.service.cancel(PRINCIPAL, name))["status"] == "cancelled"
    await until(lambda: not first.service.running)
    assert first.completions.last.stopped
    for server in servers:
        if deleted:
            with pytest.raises(NotFoundError):
                await server.status(name)
        else:
            assert await server.status(name) == "cancelled"


async def test_the_end_of_a_response_is_not_taken_for_a_cancellation(servers, monkeypatch):
    """It is in the database a moment before its last events are written."""
    first, _ = servers
    await first.begin()
    producer = first.completions.last
    kept, ending = first.service._store, asyncio.Event()
    end = kept.end

    async def slow(row):
        stored = await end(row)
        await ending.wait()
        return stored

    monkeypatch.setattr(kept, "end", slow)
    producer.released.set()
    await until(lambda: producer.endpoint.ending)
    await until(lambda: _status(first, StoredResponse) == "completed")
    await first.service._renew()
    ending.set()
    await until(lambda: not first.service.running)
    assert producer.succeeded
    assert not producer.stopped


async def test_an_answer_in_the_background_waits_for_the_database(apps, servers, monkeypatch):
    first, _ = servers
    name = await first.begin()
    monkeypatch.setattr(endpoint, "BACKOFF", Backoff(0.001, 0.001))
    failures = [OperationalError("away", {}, Exception()) for _ in range(2)]
    end = repository_of_responses.end

    def failing(session, key, values):
        ended = end(session, key, values)
        if failures:
            raise failures.pop()
        return ended

    monkeypatch.setattr(repository_of_responses, "end", failing)
    first.completions.last.released.set()
    await until(lambda: not first.service.running)
    assert (await first.status(name), failures) == ("completed", [])


async def test_an_answer_in_the_background_outlives_its_full_conversation(servers, monkeypatch):
    first, second = servers
    key = ResponseKey("t", "a", "conv")
    await first.service._store.conversations.create(key, {}, [])
    name = await first.begin(conversation="conv")
    monkeypatch.setattr(conversations, "MAX_BYTES", -1)
    first.completions.last.released.set()
    await until(lambda: not first.service.running)
    assert await second.status(name) == "completed"


@databases.ON_POSTGRESQL
@pytest.mark.parametrize("change", ["remove", "update"])
async def test_changes_of_a_conversation_wait_for_each_other(apps, monkeypatch, change):
    """Another server changes a conversation once this one has read it, or waits for it."""
    kept, key = Conversations(apps), ResponseKey("t", "a", "conv")
    item = {"type": "message", "role": "user", "content": []}
    await kept.create(key, {}, [{"id": "first", **item}])
    found, others = conversations._found, iter(["other"])

    def interrupted(session, key, **options):
        row = found(session, key, **options)
        for name in others:
            with suppress(OperationalError), apps.begin() as other:
                other.execute(text("SET LOCAL lock_timeout = '1ms'"))
                if change == "remove":
                    kept.append(other, key, [{"id": name, **item}])
                else:
                    other.execute(delete(StoredConversation))
        return row

    monkeypatch.setattr(conversations, "_found", interrupted)
    await (kept.remove(key, "first") if change == "remove" else kept.update(key, {"a": "b"}))
    with apps() as session:
        size_bytes = session.scalar(select(func.coalesce(func.sum(ConversationItem.size_bytes), 0)))
        assert session.scalar(select(StoredConversation.size_bytes)) == size_bytes


def _status(server, model):
    with server.service._store._sessions() as session:
        return session.query(model.status).scalar()
