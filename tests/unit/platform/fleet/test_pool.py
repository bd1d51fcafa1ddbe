"""Workers join, are lost, return, drain and leave; control gets each event once."""

import asyncio
import contextlib
import logging

import pytest
from pool_world import PoolWorld, probe_often, request
from received import send
from scripted_server import ScriptedServer

from fairserve.engine.wire.base import WorkerUnavailableError
from fairserve.engine.wire.client import worker_session
from fairserve.platform.fleet import watch
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.scheduling import events as ev


@pytest.fixture
async def world(monkeypatch):
    probe_often(monkeypatch)
    async with worker_session() as session:
        made = PoolWorld(session)
        yield made
        await made.pool.close()


@pytest.fixture
async def server():
    async with ScriptedServer() as made:
        yield made


@pytest.fixture
async def plain():
    async with ScriptedServer("openai") as made:
        yield made


def kinds(world):
    reported = ev.WorkerReported
    return [type(event).__name__ for event in world.events if not isinstance(event, reported)]


# --- joining ----------------------------------------------------------------------------------------


async def test_a_worker_joins_and_reports(world, server):
    server.models = ["m", "adapter"]
    world.add(server)
    assert (world.state(), "w" in world.pool) == ("joining", False)
    await world.until(lambda: ev.WorkerReported("w") in world.events)
    assert world.events[0] == ev.WorkerJoined("w", 1024, "m", kind="vllm")
    assert (world.state(), list(world.pool), world.pool.serves("w")) == ("ready", ["w"], True)
    view = world.view()
    assert (view["version"], view["models"], view["reason"]) == ("0.33.0", ["m", "adapter"], "")
    assert view["circuit"] == {"state": "closed", "opened": 0, "next_look_s": None}
    assert (await world.call())[0]["model"] == "m"
    with pytest.raises(ValueError, match="already"):
        world.add(server)


async def test_a_worker_serves_its_configured_model(world, server):
    server.models = ["m", "adapter"]
    world.add(server, model="adapter", kv_tokens=99)
    await world.until(lambda: world.state() == "ready")
    assert world.events[0] == ev.WorkerJoined("w", 1024, "adapter", kind="vllm"), (
        "its own size counts"
    )
    assert world.facts[0].model == "adapter"


async def test_a_worker_without_its_model_is_rejected_with_the_reason(world, server, caplog):
    world.add(server, model="other")
    await world.health_checks(server, 12)
    assert (world.state(), world.joined) == ("joining", {})
    assert world.view()["reason"] == "it does not serve 'other'; it serves m"
    assert caplog.text.count("cannot join") == 1, "it is logged once"
    server.models.append("other")
    await world.until(lambda: world.state() == "ready")
    assert world.view()["reason"] == ""


async def test_a_worker_rejected_by_the_platform_does_not_join(world, server):
    world.refuses = "it serves 'm'; the others serve 'n'"
    world.add(server)
    await world.until(lambda: world.view()["reason"])
    assert (world.state(), world.view()["reason"]) == ("joining", world.refuses)


async def test_an_unreachable_worker_is_reported(world, server):
    world.add(server, url="http://user:secret@127.0.0.1:1")
    await world.until(lambda: world.view()["reason"])
    assert (world.state(), world.events) == ("joining", [])
    assert "/health" in world.view()["reason"]
    assert "secret" not in str(world.view())


async def test_a_token_is_read_from_the_environment(world, server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    server.token = "sk-very-secret"
    world.add(server, api_key_env="TEST_WORKER_TOKEN")
    await world.until(lambda: world.view()["reason"])
    assert "TEST_WORKER_TOKEN" in world.view()["reason"]
    monkeypatch.setenv("TEST_WORKER_TOKEN", "sk-wrong")
    await world.until(lambda: "401" in world.view()["reason"])
    monkeypatch.setenv("TEST_WORKER_TOKEN", server.token)
    await world.until(lambda: world.state() == "ready")
    assert await world.call()
    assert "secret" not in caplog.text + str(world.view())


@pytest.mark.parametrize("version", ["0.31.2", "dev"])
async def test_an_old_vllm_joins_with_a_warning(world, server, caplog, version):
    server.version = version
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    assert "worker w: " in caplog.text
    assert "vllm_xargs" in caplog.text
    assert world.view()["version"] == version


async def test_a_server_of_another_kind_joins_with_its_configuration(world, plain):
    world.add(plain, kv_tokens=5000, concurrency=1)
    await world.until(lambda: world.state() == "ready")
    assert world.events[0] == ev.WorkerJoined("w", 5000, "m", kind="openai", slots=1)
    assert world.view()["reported"] is None
    held = send(world.pool["w"], request("hold"))
    waiting = send(world.pool["w"], request(name="second"))
    await anext(held)
    queue = {"waiting": 1, "sent": 1, "concurrency": 1, "paused_s": 0.0}
    assert world.view()["local_queue"] == queue
    held.close()
    assert [chunk async for chunk in waiting]
    assert plain.most_under_way == 1


# --- circuits ---------------------------------------------------------------------------------------


async def fail(world, count=3):
    for _ in range(count):
        with contextlib.suppress(WorkerUnavailableError, KeyError):
            await world.call()


async def test_calls_that_do_not_start_open_the_circuit_until_a_probe(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    stream = send(world.pool["w"], request("hold"))
    await anext(stream)
    server.failing = True
    await fail(world)
    assert world.state() == "open circuit"
    assert "it answered 500: broken" in world.view()["reason"]
    assert (kinds(world), world.pool.serves("w")) == (["WorkerJoined", "WorkerLost"], False)
    assert "w" in world.pool, "what runs there can end"
    server.failing = False
    await world.until(lambda: world.state() == "ready")
    assert kinds(world) == ["WorkerJoined", "WorkerLost", "WorkerJoined"]
    server.released.set()
    assert [chunk.data async for chunk in stream][-1]["usage"]["completion_tokens"] == 3
    assert await world.call()


async def test_an_unresponsive_worker_is_lost_and_returns(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    server.healthy = False
    await world.until(lambda: world.state() == "open circuit")
    assert kinds(world) == ["WorkerJoined", "WorkerLost"]
    assert "/health answers 503" in world.view()["reason"]
    assert "w" not in world.pool
    await world.health_checks(server)
    assert kinds(world) == ["WorkerJoined", "WorkerLost"], "it is lost once"
    server.healthy = True
    await world.until(lambda: world.state() == "ready")
    assert kinds(world)[2:] == ["WorkerJoined"]


async def test_calls_that_fail_during_a_probe_still_open_the_circuit(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    member = world.pool.members()[0]

    def fail_now():
        world.while_asked = lambda: None
        for _ in range(3):
            member.watched.failed(member.circuit.generation, WorkerUnavailableError("500"), "")
        assert world.state() == "open circuit"
        assert member.circuit.opened == 1

    world.while_asked = fail_now
    await world.until(lambda: "WorkerLost" in kinds(world))
    await world.until(lambda: world.state() == "ready")
    assert member.circuit.generation == 1, "it came back by the look after the pause"


async def test_one_failed_probe_changes_nothing(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    member = world.pool.members()[0]
    world.pool._watch._unhealthy(member, "once")
    await world.health_checks(server)
    world.pool._watch._unhealthy(member, "and once")
    await world.health_checks(server)
    assert (world.state(), kinds(world)) == ("ready", ["WorkerJoined"])


async def test_calls_waiting_at_a_lost_worker_are_requeued(world, plain):
    world.add(plain, concurrency=1)
    await world.until(lambda: world.state() == "ready")
    held = send(world.pool["w"], request("hold"))
    waiting = send(world.pool["w"], request(name="second"))
    world.pool.remove("w")
    with pytest.raises(WorkerUnavailableError, match="lost"):
        await anext(waiting)
    held.close()


async def test_a_worker_unknown_to_control_joins_again(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    world.joined.clear()
    await world.until(lambda: world.joined)
    assert kinds(world) == ["WorkerJoined", "WorkerJoined"]


async def test_a_new_process_joins_immediately_despite_an_open_circuit(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    server.failing = True
    await fail(world)
    world.pool.remove("w")
    world.add(server)
    assert world.state() == "joining"
    await world.until(lambda: world.state() == "ready")


async def test_an_internal_error_does_not_end_probing(world, server, caplog):
    world.refuses = None
    world.facts = None  # reports have no receiver
    world.add(server)
    await world.until(lambda: "internal error" in world.view()["reason"])
    world.facts = []
    await world.until(lambda: world.state() == "ready")
    assert "AttributeError" in caplog.text


# --- load -------------------------------------------------------------------------------------------


async def test_foreign_load_is_reported(world, server):
    world.held["w"] = 100
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    server.running, server.used = 2, 0.5
    await world.until(lambda: ev.WorkerReported("w", 412) in world.events)
    view = world.view()
    assert (view["foreign_tokens"], view["reported"]["running"]) == (412, 2)
    assert (view["reported"]["kv_used_share"], view["reported"]["prefix_hit_tokens"]) == (0.5, 40)
    first, second = [send(world.pool["w"], request("hold", n=1)) for _ in range(2)]
    assert world.view()["sequences"] == 2
    await world.until(lambda: world.view()["foreign_tokens"] == 0)
    for stream in (first, second):
        stream.close()


# --- leaving ----------------------------------------------------------------------------------------


async def test_a_draining_worker_finishes_its_calls_and_starts_none(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    stream = send(world.pool["w"], request("hold"))
    world.pool.drain("w")
    world.pool.drain("w")
    world.pool.drain("unknown")
    assert kinds(world) == ["WorkerJoined", "WorkerDraining"]
    await world.health_checks(server, 6)
    assert (world.state(), "w" in world.pool, world.pool.serves("w")) == ("draining", True, False)
    server.released.set()
    assert [chunk async for chunk in stream]
    world.pool.remove("w")
    assert kinds(world) == ["WorkerJoined", "WorkerDraining", "WorkerLost"]


async def test_a_draining_worker_that_dies_does_not_return(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    world.pool.drain("w")
    server.healthy = False
    await world.until(lambda: "w" not in world.pool)
    server.healthy = True
    await world.health_checks(server, 6)
    assert kinds(world) == ["WorkerJoined", "WorkerDraining", "WorkerLost"]


async def test_a_worker_drained_before_joining_never_joins(world, server):
    world.add(server)
    world.pool.drain("w")
    await world.health_checks(server, 6)
    world.pool.remove("w")
    world.pool.remove("unknown")
    assert (world.pool.members(), world.events) == ([], [])


async def test_a_worker_drained_while_it_joins_does_not_join(world, server, monkeypatch):
    async def drained(spec, client):
        facts = await facts_of(spec, client)
        world.pool.drain(spec.worker_id)
        asked.set()
        return facts

    facts_of, asked = watch.facts_of, asyncio.Event()
    monkeypatch.setattr(watch, "facts_of", drained)
    world.add(server)
    await asked.wait()
    probes = len(server.paths)
    await world.until(lambda: len(server.paths) > probes + 1)
    assert (world.events, world.state()) == ([], "draining")


async def test_an_undrain_does_not_affect_calls(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    stream = send(world.pool["w"], request("hold"))
    world.pool.drain("w")
    assert world.pool.undrain("w")
    assert not world.pool.undrain("w")
    assert not world.pool.undrain("unknown")
    assert world.state() == "ready"
    await world.health_checks(server, 3)
    assert kinds(world) == ["WorkerJoined", "WorkerDraining", "WorkerUndrained"]
    assert (world.pool.serves("w"), world.pool.busy("w")) == (True, True)
    server.released.set()
    assert [chunk async for chunk in stream]
    stream.close()
    assert not world.pool.busy("w")
    assert not world.pool.busy("unknown")
    assert await world.call()


def later(seconds):
    """Return the number of timers of the loop that are more than ``seconds`` away."""
    loop = asyncio.get_running_loop()
    return sum(timer.when() > loop.time() + seconds for timer in loop._scheduled)


async def test_a_drained_worker_that_never_joined_joins_after_an_undrain(
    world, server, monkeypatch
):
    monkeypatch.setattr(watch, "STARTUP_PROBE_S", 10_000)
    others = later(9_000)
    world.add(server)
    world.pool.drain("w")
    await world.until(lambda: later(9_000) > others)
    assert len(server.paths) == 1, "it was probed, and the next probe is hours away"
    assert not world.pool.undrain("w")
    await world.until(lambda: world.state() == "ready")
    assert kinds(world) == ["WorkerJoined"]


async def test_a_worker_that_died_draining_joins_again_after_an_undrain(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    world.pool.drain("w")
    server.healthy = False
    await world.until(lambda: "WorkerLost" in kinds(world))
    server.healthy = True
    assert not world.pool.undrain("w")
    await world.until(lambda: world.state() == "ready")
    assert kinds(world) == ["WorkerJoined", "WorkerDraining", "WorkerLost", "WorkerJoined"]


async def test_calls_queued_at_a_drained_worker_keep_it_busy(world, plain):
    world.add(plain, concurrency=1)
    await world.until(lambda: world.state() == "ready")
    stream = send(world.pool["w"], request("hold"))
    waits = asyncio.create_task(world.call())
    await world.until(lambda: world.view()["local_queue"]["waiting"] == 1)
    world.pool.drain("w")
    world.pool.undrain("w")
    assert world.view()["local_queue"]["waiting"] == 1, "it was given back"
    assert world.pool.busy("w")
    plain.released.set()
    assert [chunk async for chunk in stream]
    stream.close()
    assert await waits
    assert not world.pool.busy("w")


async def test_a_removed_worker_is_lost_immediately(world, server):
    world.add(server)
    await world.until(lambda: world.state() == "ready")
    world.calls["w"] = 1
    world.pool.drain("w")
    world.pool.remove("w")
    assert kinds(world)[-1] == "WorkerLost"
    with pytest.raises(KeyError):
        world.pool["w"]
    world.pool.add(WorkerSpec("w", server.url))
    await world.until(lambda: world.state() == "ready")
