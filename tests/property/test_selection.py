"""The indexes of WSC find the call that a scan of the whole queue finds."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_wsc import PlainSelection
from random_events import RandomEvents, outcome

from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.locality import waiting_index
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.registry import SYSTEMS

OPTIONS = [
    {},
    {"resident_share": None, "feeder.max_bypass": 3, "levels": "tenant > app > user"},
    {"feeder.locality_slack": 1.0, "feeder.locality_gain": False, "newcomers": "shared"},
    {
        "resident_share": None,
        "feeder.interaction_slack": 0.0,
        "feeder.charge": "finish",
        "levels": "user",
    },
    {"resident_share": 0.2, "levels": "tenant > app > user"},
    {"feeder.interaction_slack": 0.0},
]


def selections(pool, rng):
    """Yield selections of a pool's feeders for random workers and restrictions."""
    workers = pool.locality.workers
    for feeder in pool.feeders:
        restrictions = sorted({call.restriction for call in feeder.waiting()}, key=repr)
        mask = pool.worker_table.serving.mask & rng.getrandbits(8)
        excluded = {each for each in restrictions if rng.random() < 0.4}
        yield feeder, WorkerSet(workers, mask), rng.choice([frozenset(), excluded])


def held_of(feeder, rng):
    """Return restrictions with which no run may begin."""
    restrictions = sorted({call.restriction for call in feeder.waiting()}, key=repr)
    return frozenset(each for each in restrictions if rng.random() < 0.4)


@pytest.fixture(autouse=True, scope="module")
def _large_groups_of_three():
    """Let groups become large and small again with few calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_index, "LARGE", 3)
        patch.setattr(waiting_index, "SMALL", 2)
        yield


@pytest.mark.parametrize("options", OPTIONS)
@example(seed=93089)  # a call returns that was sent before an earlier one of its client
@given(seed=st.integers(0, 2**32))
def test_the_indexed_choice_is_the_choice_of_a_scan(options, seed):
    rng = random.Random(seed)
    source = RandomEvents(rng, users=rng.choice([2, 5]), refusals=False)
    dispatcher = Dispatcher(SYSTEMS["fairserve"].with_options(options), seed=1)
    for event in source.begin():
        source.took(dispatcher.handle(event, source.now_s))
    for _ in range(60):
        commands = outcome(dispatcher, source.next(), source.now_s)
        source.took(commands if isinstance(commands, list) else ())
        for pool in dispatcher.pools.values():
            for feeder, workers, excluded in selections(pool, rng):
                plain = PlainSelection(feeder, workers, excluded)
                assert feeder.peek(workers, excluded) is plain.peek()
                if feeder.runs_first:
                    assert feeder.peek_fair(workers, excluded) is plain.peek_fair()
                    held = rng.choice([frozenset(), held_of(feeder, rng)])
                    plain = PlainSelection(feeder, workers, excluded, held)
                    assert feeder.peek(workers, excluded, held) is plain.peek()
