"""A background call that no worker may ever get is rejected when it is submitted."""

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.platform.base.errors import UnprocessableError
from fairserve.platform.control.capacity import check_background_room
from fairserve.scheduling.registry import SYSTEMS


@pytest.fixture(scope="module")
def dispatcher():
    return VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=1000, slots=8).dispatcher


@pytest.mark.parametrize(
    ("output", "more", "fits"),
    [
        (460, {}, True),
        (461, {}, False),
        (100, {"samples": 4}, True),
        (10, {"samples": 5}, False),
        (900, {"background": False}, True),
        (900, {"pool": "without workers"}, True),
    ],
)
def test_a_call_may_hold_half_of_a_worker(dispatcher, output, more, fits):
    more = {"background": True, **more}
    call = make_call("c", tokens=prompt((1, 40)), output=output, **more)
    if fits:
        check_background_room(dispatcher, call)
        return
    with pytest.raises(
        UnprocessableError, match="may hold 500 tokens and 4 answers in all"
    ) as raised:
        check_background_room(dispatcher, call)
    assert raised.value.param == "max_tokens"
