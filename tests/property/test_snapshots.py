"""A dispatcher restored from a snapshot answers every later event as its original does."""

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_events import RandomEvents, outcome

from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS

OPTIONS = {
    "fairserve": [
        {},
        {"newcomers": "shared", "newcomer_slices": 2.0, "newcomer_growth_s": 60.0},
        {"feeder.weight_cap": 2.0, "high_watermark": 1.2},
        {"levels": "tenant > app > user", "immunity_rule": "profile"},
        {"resident_share": 0.3, "hold_s": 25.0},
    ],
    "rpm-20": [{"throttle.limit": 3}, {"throttle.limit": 3, "throttle.window": "fixed"}],
}
ALIKE = {"lcf", "vtc", "vtc-predict", "vtc-noisy", "vtc-oracle", "rr-lpm", "lpm", "d2lpm"}
"""Systems that differ from others at their workers only."""
CONFIGURATIONS = [
    (name, options) for name in SYSTEMS if name not in ALIKE for options in OPTIONS.get(name, [{}])
]


def made(name, options):
    return Dispatcher(SYSTEMS[name].with_options(options), seed=1)


def plain(dispatcher, now_s):
    return json.loads(json.dumps(dispatcher.snapshot(now_s), allow_nan=False))


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
@given(st.integers(0, 2**32), st.integers(0, 80))
@example(12, 53)  # before any run was refused
def test_a_restored_dispatcher_answers_like_its_original(name, options, seed, before):
    source = RandomEvents(random.Random(seed))
    original = made(name, options)
    for event in source.begin():
        source.took(original.handle(event, source.now_s))
    for _ in range(before):
        commands = outcome(original, source.next(), source.now_s)
        source.took(commands if isinstance(commands, list) else ())
    restored = made(name, options)
    restored.restore(plain(original, source.now_s), source.now_s)
    assert plain(restored, source.now_s) == plain(original, source.now_s)
    for _ in range(50):
        event = source.next()
        commands = outcome(original, event, source.now_s)
        assert outcome(restored, event, source.now_s) == commands, event
        source.took(commands if isinstance(commands, list) else ())
    assert plain(restored, source.now_s) == plain(original, source.now_s)
