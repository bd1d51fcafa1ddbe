"""Fair shares of what is asked for, and how near to them clients came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import TokenUsage
from fairserve.platform.reproduce.steady import max_min_shares, steady
from fairserve.scheduling.metrics import CallSample

ASKED = st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), min_size=1, max_size=6)


@given(ASKED, st.floats(0, 1))
def test_shares_are_max_min_fair(asked, part):
    total = part * sum(asked.values())
    shares = max_min_shares(asked, total)
    assert sum(shares.values()) == pytest.approx(total, abs=1e-3)
    most = max(shares.values())
    for client, share in shares.items():
        assert share <= asked[client] + 1e-6
        assert share == pytest.approx(asked[client]) or share == pytest.approx(most, abs=1e-3)


def call(client, served, *, waits=False, arrival=0.0):
    """``served`` tokens of output in ten seconds, or one that only begins after them."""
    usage = TokenUsage(input_tokens=0, output_tokens=served)
    begin, end = (20.0, 30.0) if waits else (arrival, 10.0)
    return CallSample(client, client, arrival, end, "completed", usage, first_token_s=begin)


def entitled(*calls):
    result = ReplayResult(list(calls), [], 1.0)
    found = steady(Trace("t", 16, ()), result, begin_s=0.0, end_s=10.0)["steady"]
    return found["jain_index_entitled"], found["jain_index_extend"]


def test_a_client_that_asks_for_little_is_no_unfairness():
    seen, plain = entitled(call("a", 100), call("b", 900), call("b", 500, waits=True))
    assert seen == pytest.approx(1.0)
    assert plain < 0.7


def test_a_client_that_waits_is():
    seen, _ = entitled(call("a", 100), call("a", 900, waits=True), call("b", 900))
    assert seen < 0.8


def test_what_arrives_later_was_not_asked_for():
    seen, _ = entitled(call("a", 100), call("a", 900, waits=True, arrival=11.0), call("b", 900))
    assert seen == pytest.approx(1.0)
