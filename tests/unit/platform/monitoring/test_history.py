"""Test the last half hour as arrays: one sample a bucket, a tenant's view, and subscribers."""

import asyncio
from types import SimpleNamespace

import pytest
from until import turn

from fairserve.engine.wire.base import WorkerMetrics
from fairserve.interactions.call import TokenUsage
from fairserve.platform.control.messages import Progress
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS


def member(worker_id, metrics=None, state="ready"):
    return SimpleNamespace(worker_id=worker_id, metrics=metrics, state=state)


@pytest.fixture
async def history(world):
    members = [member("w0", WorkerMetrics(3, 1, 0.25)), member("w1"), member("w9", state="joining")]
    made = world.monitoring.history
    world.members += members
    made.world = world
    return made


async def step(history, seconds=BUCKET_S):
    history.world.now_s += seconds
    return await history.take()


async def test_a_sample_has_the_cluster_and_every_worker(world, history):
    grant = await world.submit("c1", run="r1", input_tokens=200)
    await world.submit("c2", run="r2")
    world.control.progress(Progress(grant.call_id, True, TokenUsage(200, 0, 50, 10), True))
    await world.release(await world.submit("c3", run="r3"))
    sample = await step(history)
    assert (sample.queued_calls, sample.running_calls, sample.live_interactions) == (0, 2, 3)
    assert sample.capacity_tokens == 2_000_000
    (model,) = sample.models
    assert (model.high_watermark, model.low_watermark) == (2.0, 1.2)
    w0, w1, w9 = sample.workers
    assert (w0.worker_id, w0.state, w0.reported_running, w0.kv_used_share) == (
        "w0",
        "ready",
        3,
        0.25,
    )
    assert w0.calls + w1.calls == 2
    assert (w1.reported_running, w1.kv_capacity_tokens) == (None, 1_000_000)
    assert (w9.state, w9.demand_tokens, w9.calls) == ("joining", None, None)
    assert w0.prompt_tokens + w1.prompt_tokens == 100, "of the call that ended"
    assert await history.take() is None, "its bucket has one"


async def test_the_arrays_have_one_entry_a_bucket(world, history):
    empty = history.snapshot()
    assert (empty.at, empty.clients, empty.cluster.workers) == ([], [], {})
    await step(history)
    await world.release(await world.submit("c1", run="r1"), output=5)
    await step(history)
    await step(history, 3 * BUCKET_S)  # the loop was delayed
    found = history.snapshot()
    assert found.at == [1_000_100.0 + BUCKET_S * n for n in range(1, 6)]
    assert found.activity.service == [0.0, 110.0, 0.0, 0.0, 0.0]
    assert found.activity.ended["completed"] == [0, 1, 0, 0, 0]
    assert found.activity.accepted == [0, 1, 0, 0, 0]
    assert found.activity.runs_begun == [0, 1, 0, 0, 0]
    assert found.activity.jain_index == [None, 1.0, None, None, None]
    assert found.activity.queue_p50_s == [None, 0.0, None, None, None]
    assert found.overloaded == [False, False, None, None, False]
    assert found.cluster.capacity_tokens == [2_000_000, 2_000_000, None, None, 2_000_000]
    assert found.cluster.workers["w0"].kv_used_share == [0.25, 0.25, None, None, 0.25]
    (client,) = found.clients
    assert (client.user, client.service) == ("u", [0.0, 110.0, 0.0, 0.0, 0.0])
    assert found.other_clients == [0.0] * 5
    assert history.snapshot(buckets=2).at == found.at[-2:]
    unnamed = history.snapshot(clients=0)
    assert (unnamed.clients, unnamed.other_clients) == ([], [0.0, 110.0, 0.0, 0.0, 0.0])


async def test_a_tenant_sees_only_its_own_samples(world, history):
    for number, tenant in enumerate(["one", "other", "other"]):
        call = await world.submit(
            f"c{number}", run=f"r{number}", tenant=tenant, user=f"of-{tenant}", app=f"app-{tenant}"
        )
        await world.release(call)
    await step(history)
    own = history.snapshot("one")
    assert own.cluster is None
    assert [each.user for each in own.clients] == ["of-one"]
    assert (own.activity.service, own.activity.accepted) == ([110.0], [1])
    assert own.other_clients == [0.0]
    assert "other" not in repr(own).replace("other_clients", "")
    nobody = history.snapshot("nobody")
    assert (nobody.activity.service, nobody.clients) == ([0.0], [])
    assert history.snapshot().activity.service == [330.0]


async def test_samples_are_kept_for_half_an_hour(history):
    for _ in range(BUCKETS + 30):
        await step(history)
    assert len(history.snapshot().at) == BUCKETS


async def test_each_sample_is_published(history):
    samples = []
    stop = history.subscribe(samples.append)
    first = await step(history)
    await history.take()
    second = await step(history)
    stop()
    await step(history)
    assert samples == [first, second]


async def test_a_sample_is_taken_at_the_end_of_each_bucket(world, history):
    """The clock advances only in sleeps."""
    asked = []
    sleep, own = asyncio.sleep, asyncio.get_running_loop()

    async def passing(seconds):
        if asyncio.get_running_loop() is not own:  # a server's loop in another thread
            await sleep(seconds)
            return
        asked.append(seconds)
        world.now_s += seconds / (2 if len(asked) == 2 else 1)  # the second sleep wakes early
        await turn()

    enough = asyncio.Event()
    samples = []

    def on_sample(sample):
        samples.append(sample.number)
        if len(samples) == 3:
            enough.set()

    history.subscribe(on_sample)
    world.now_s += 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairserve.platform.monitoring.history.asyncio.sleep", passing)
        task = asyncio.create_task(history.run())
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert asked[:4] == [4.0, 5.0, 2.5, 5.0]
    assert samples == [20, 21, 22]
