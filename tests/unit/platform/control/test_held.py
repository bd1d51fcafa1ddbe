"""Calls that wait for memory of their run are marked, unlike those that wait for a worker."""

import pytest

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.serving.decision.headers import call_headers
from fairserve.scheduling.dispatch.admission import LimitsInUse

CLIENT = ("t", "app", "u")


@pytest.fixture
async def full(make_world):
    """Return a world in which the run of an app without a profile fits each worker once."""
    return make_world(capacity=1000, feed_window=1.0, max_queue_wait_s=30.0)


async def begun(world):
    """Let a run begin at each worker; return the grants."""
    return [await world.submit("c", run=f"r{number}") for number in range(2)]


def headers_of(grant):
    return call_headers("row", "run", "c", "", None, grant, grant.queue_s, LimitsInUse())


async def test_a_held_call_is_shown_and_marked(full):
    grants = await begun(full)
    waiting = await full.submitted("c", run="r9")
    full.pass_time(1.0)
    assert [view.state for view in full.control.client_calls(CLIENT, 9)] == [
        "running",
        "running",
        "held",
    ]
    cluster = await full.control.cluster()
    (model,) = cluster.models
    for worker in cluster.workers:
        assert (worker.sequences, worker.slots, worker.window_tokens) == (1, None, 1000.0)
        assert await full.control.worker(worker.worker_id) == worker
    assert await full.control.worker("unknown") is None
    assert (model.held_calls, model.resident_runs) == (1, 2)
    assert model.queued_tokens >= 100
    held, active = [
        [each.interaction_id for each in await full.control.runs(None, None, 2, held=held)]
        for held in (True, False)
    ]
    assert (held, active) == (["app/r9"], ["app/r1", "app/r0"])
    assert len(await full.control.runs(None, None, 9)) == 3
    await full.release(grants[0])
    await full.control.close_interaction("app/r0", cancel=False)
    granted = await waiting
    assert granted.held
    assert headers_of(granted)["x-fairserve-held"] == "true"
    assert "x-fairserve-held" not in headers_of(grants[0])


async def test_a_call_of_a_run_in_progress_is_not_held(full):
    await begun(full)
    await full.submitted("c", run="r9")
    full.pass_time(1.0)
    assert not (await full.submit("d", run="r0")).held
    assert full.control.held_runs(["app/r0", "app/r9", "app/none"]) == {"app/r9"}


async def test_a_held_call_expires_with_the_expected_wait(full):
    await begun(full)
    waiting = await full.submitted("c", run="r9")
    for _ in range(40):
        full.pass_time(1.0)
    with pytest.raises(UnavailableError, match="no worker had room for the run's memory") as caught:
        await waiting
    assert caught.value.code == "queue_timeout"
    assert 20 <= int(caught.value.headers["Retry-After"]) <= 40
