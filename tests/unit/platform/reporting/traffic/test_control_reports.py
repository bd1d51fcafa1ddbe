"""Control reports every accepted call to the recorder once, with the router's block keys."""

import asyncio

import numpy as np
import pytest
from control_world import MemoryJournal

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE
from fairserve.platform.control.cell import BLOCK_TOKENS
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.messages import Cancel, Grant, RejectCall, Release, Submit
from fairserve.platform.control.service import ControlService
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROMPT = np.arange(100, dtype=np.uint32)
CAPACITY = 1000


@pytest.fixture
def journal():
    return MemoryJournal()


class Ended(CallListener):
    """A listener that keeps ended calls."""

    def __init__(self):
        self.calls = []

    def call_ended(self, call, outcome, now_s):
        self.calls.append(call)


@pytest.fixture
async def world(journal):
    ended = Ended()
    control = ControlService(
        SYSTEMS["rpm-3"],
        journal,
        clock=lambda: 100.0,
        wall=lambda: 1_000_000.0,
    )
    control.subscribe(ended)
    control.start()
    control.post(ev.WorkerJoined("w0", CAPACITY))
    control.post(ev.AppChanged("app", DEFAULT_PROFILE, Limits(3, None)))
    yield control, ended.calls
    await control.close()


def submit(control, name, **more):
    call = Call(
        f"app/run/{name}", "t", "app", "u", "app/run", "m", 100, 0, 20, token_ids=PROMPT, **more
    )
    return control.submit(Submit(call, record_id=name), lambda cancel: None)


async def test_each_accepted_call_ends_once_with_keys_stage_and_its_run(world):
    control, ended = world
    for name in ("a", "b"):
        grant = await submit(control, name)
        assert isinstance(grant, Grant)
        await control.release(Release(grant.call_id, "completed", TokenUsage(100, 0, 0, 5)))
    assert [live.call.call_id for live in ended] == ["app/run/a", "app/run/b"]
    assert [live.call.stage for live in ended] == [1, 2]
    assert {live.run_opened_at for live in ended} == {1_000_000.0}
    keys = [list(live.block_keys) for live in ended]
    assert keys[0] == keys[1]
    assert len(keys[0]) == len(PROMPT) // BLOCK_TOKENS


async def test_cancelled_calls_are_recorded_but_rejected_ones_are_not(world, journal):
    control, ended = world
    for name in ("a", "b"):
        assert isinstance(await submit(control, name), Grant)
    control.post(ev.WorkerDraining("w0"))
    waiting = asyncio.create_task(submit(control, "c"))
    async with asyncio.timeout(20):
        await journal.accepted["c"].wait()
    control.cancel(Cancel("app/run/c"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(await submit(control, "d"), RejectCall)
    assert "app/run/d" not in {live.call.call_id for live in ended}
    assert [live.call.call_id for live in ended].count("app/run/c") == 1
