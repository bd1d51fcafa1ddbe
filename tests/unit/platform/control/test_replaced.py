"""In a shared order, calls in progress continue after an earlier state replaced the present one."""

import asyncio

import orjson
import pytest
from control_world import World
from until import settle

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.cell_events import CallsLost
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.messages import Attached, Progress, Release
from fairserve.platform.control.order import OwnOrder
from fairserve.scheduling import events as ev

WORKERS = ("w0", "w1")


class LateOrder(OwnOrder):
    """An order whose events are applied when a test reads them."""

    shared = True

    def __init__(self, control, world):
        self.unread, self.read_since = [], []
        self.control = control
        super().__init__(control.cell, control.execute, lambda: world.now_s, world.wall)

    def start(self):
        """Begin without ticks."""

    def put(self, event):
        self.unread.append((event, None))

    async def applied(self, event):
        wait = asyncio.get_running_loop().create_future()
        self.unread.append((event, wait))
        await wait

    async def read(self, number=None):
        """Apply events, by default until there are none."""
        await settle()
        while self.unread and number != 0:
            event, wait = self.unread.pop(0)
            self.read_since.append((event, None))
            super().put(event)
            if wait is not None and not wait.done():
                wait.set_result(None)
            await settle()
            number = None if number is None else number - 1

    def of_others(self, *events):
        """Apply events of other processes."""
        for event in events:
            super().put(event)

    def state(self):
        """Return the present state."""
        self.read_since.clear()
        return self._cell.snapshot()

    def replace(self, state, *, repeats=True):
        """Replace the state; the events that were read since it are put once more."""
        before = [*self._cell.calls]
        self._cell.restore(state)
        self.control.replaced(before)
        if repeats:
            self.unread[:0] = self.read_since
        self.read_since.clear()


class Own(CallListener):
    """Notes the steps of the calls of this process."""

    def __init__(self):
        self.steps = []

    def call_accepted(self, call, now_s):
        self.steps.append(("accepted", call.record_id))

    def call_ended(self, call, outcome, now_s):
        self.steps.append((outcome, call.record_id))


@pytest.fixture
async def world():
    world = World(order=LateOrder)
    await world.control.order.read()
    yield world
    await world.control.close()


@pytest.fixture
def order(world):
    return world.control.order


async def granted(world, name="c1", **more):
    task = asyncio.create_task(world.submit(name, **more))
    await world.control.order.read()
    return await task


def progress(world, grant, tokens):
    usage = TokenUsage(100, 0, 0, tokens)
    return world.control.progress(Progress(grant.call_id, True, usage))


def outcomes(world):
    return [(row["call_id"], row["outcome"], row["output_tokens"]) for row in world.journal.rows()]


async def test_a_call_that_the_state_lacks_continues(world, order):
    own = Own()
    world.control.subscribe(own, own=True)
    state = order.state()
    grant = await granted(world)
    assert progress(world, grant, 1)
    await order.read()
    order.replace(state)
    assert progress(world, grant, 2)
    assert world.control.moved(grant.call_id, grant.worker_id)
    await order.read()
    assert world.control.cell.calls.running(grant.call_id).usage.output_tokens == 2
    await world.release(grant, output=3)
    await order.read()
    assert outcomes(world) == [("row-run-c1", "completed", 3)]
    assert own.steps == [("accepted", "row-run-c1"), ("completed", "row-run-c1")]
    assert [each for each in world.messages if not isinstance(each, Attached)] == []
    assert not progress(world, grant, 4)


async def test_a_call_that_ends_while_the_state_lacks_it_is_recorded_with_its_usage(world, order):
    order.of_others(*map(ev.WorkerDraining, WORKERS))
    state = order.state()
    order.of_others(*map(ev.WorkerUndrained, WORKERS))
    grant = await granted(world)
    order.replace(state)
    await order.read()
    assert world.control.cell.calls.waiting == 1, "no worker takes it at present"
    await world.release(grant, output=3)
    await order.read()
    order.of_others(*map(ev.WorkerUndrained, WORKERS))
    await order.read()
    assert outcomes(world) == [("row-run-c1", "completed", 3)]
    assert not [*world.control.cell.calls]


@pytest.mark.parametrize("stored", [False, True], ids=["once", "a state is stored since"])
async def test_a_call_whose_end_was_read_keeps_no_place(world, order, stored):
    """Nobody at this process waits for the call any more when it gets its second grant."""
    order.of_others(*map(ev.WorkerDraining, WORKERS))
    state = order.state()
    order.of_others(*map(ev.WorkerUndrained, WORKERS))
    grant = await granted(world)
    await world.release(grant, output=3)
    await order.read()
    order.replace(state)
    await order.read()
    assert world.control.cell.calls.waiting == 1, "no worker takes it at present"
    if stored:
        order.replace(orjson.loads(orjson.dumps(order.state())))
        await order.read()
    order.of_others(*map(ev.WorkerUndrained, WORKERS))
    await order.read()
    assert not [*world.control.cell.calls]
    assert {*outcomes(world)} == {("row-run-c1", "completed", 3)}, (
        "the ledger keeps one of equal rows"
    )


async def test_a_call_is_lost_once_the_state_lacks_it_after_all_was_repeated(world, order):
    state = order.state()
    grant = await granted(world)
    order.replace(state, repeats=False)
    await settle()
    assert progress(world, grant, 2), "it may be repeated"
    await order.read()
    [cancel] = world.cancelled
    assert (cancel.call_id, cancel.reason) == (grant.call_id, "the call is lost")
    assert not progress(world, grant, 3)


async def test_a_call_that_ends_while_it_requests_another_worker_is_answered(world, order):
    grant = await granted(world)
    retry = Release(grant.call_id, "failed", TokenUsage(), retry_on_another_worker=True)
    requested = asyncio.create_task(world.control.release(retry))
    await settle()
    order.of_others(CallsLost((grant.call_id,)))
    await order.read()
    with pytest.raises(UnavailableError, match="the call was stopped"):
        await requested
    assert outcomes(world) == [("row-run-c1", "failed", 0)]
