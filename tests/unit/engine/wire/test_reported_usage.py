"""A worker's usage is believed only as far as its call can have used the tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.reported_usage import (
    MAX_TOKENS,
    NOTHING_REPORTED,
    ReportedUsage,
    UsageBounds,
    prompt_bound,
    read_usage,
)

BOUNDS = UsageBounds(prompt_tokens=100, output_tokens=20)
HUGE = [10**6, 10**15, 2**53, 2**63 - 1, 2**63, 2**64 + 5, 1e30]
UNUSABLE = [
    *HUGE,
    -1,
    -(2**63),
    3.0,
    12.5,
    True,
    False,
    "12",
    "",
    None,
    [3],
    {"n": 3},
    float("nan"),
]


def usage(prompt=12, output=3, **more):
    return {"prompt_tokens": prompt, "completion_tokens": output, **more}


def cached(value):
    return {"prompt_tokens_details": {"cached_tokens": value}}


def test_usable_counts_are_read():
    details = {"completion_tokens_details": {"reasoning_tokens": 2, "rejected": 1}}
    assert read_usage({**usage(), **cached(4), **details}, BOUNDS) == ReportedUsage(
        12, 4, 3, output_details={"reasoning_tokens": 2}
    )
    assert read_usage(usage(100, 20), BOUNDS) == ReportedUsage(100, None, 20)


@pytest.mark.parametrize("value", UNUSABLE, ids=repr)
def test_an_unusable_count_is_absent_and_the_others_remain(value):
    assert read_usage(usage(prompt=value), BOUNDS) == ReportedUsage(None, None, 3)
    assert read_usage(usage(output=value), BOUNDS) == ReportedUsage(12)
    assert read_usage(usage() | cached(value), BOUNDS) == ReportedUsage(12, None, 3)
    more = {"completion_tokens_details": {"reasoning_tokens": value}}
    assert read_usage(usage() | more, BOUNDS) == ReportedUsage(12, None, 3)
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        assert read_usage(usage() | {name: value}, BOUNDS) == ReportedUsage(12, None, 3)


@pytest.mark.parametrize("value", [*UNUSABLE, {}, 7, "oops", [usage()]], ids=repr)
def test_a_usage_without_a_usable_count_reports_nothing(value):
    assert read_usage(value, BOUNDS) == NOTHING_REPORTED


def test_counts_end_at_their_bounds():
    assert read_usage(usage(output=21), BOUNDS).output_tokens is None
    assert read_usage(usage(prompt=101), BOUNDS).prompt_tokens is None
    assert read_usage(usage() | cached(13), BOUNDS).cached_tokens is None, "more than the prompt"
    assert read_usage(usage() | cached(12), BOUNDS).cached_tokens == 12


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({"total_tokens": 15}, 15),
        ({"total_tokens": 15, "completion_tokens": 3}, 12),
        ({"total_tokens": 15, "completion_tokens": 3, "prompt_tokens": 0}, 12),
        ({"total_tokens": 15, "completion_tokens": "3"}, None),
        ({"total_tokens": 15, "completion_tokens": 15}, None),
        ({"total_tokens": 2, "completion_tokens": 3}, None),
        ({"total_tokens": 15, "prompt_tokens": 10**9}, None),
        ({"total_tokens": 101}, None),
        ({"total_tokens": "15"}, None),
    ],
)
def test_a_prompt_is_the_rest_of_a_total(given, prompt):
    assert read_usage(given, BOUNDS).prompt_tokens == prompt


@pytest.mark.parametrize(
    ("counted", "context", "exact", "complete", "bound"),
    [
        (1000, 8000, True, True, 1506),
        (1000, 8000, False, True, 4256),
        (1000, 1100, True, True, 1100),
        (1000, 8000, True, False, 8000),
        (1000, None, True, True, 1506),
        (1000, 10**30, True, False, MAX_TOKENS),
        (1000, 500, False, True, 1000),
        (0, 8000, True, True, 256),
    ],
)
def test_the_bound_of_a_prompt(counted, context, exact, complete, bound):
    assert prompt_bound(counted, context, exact=exact, complete=complete) == bound


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
                    *("prompt_tokens_details", "completion_tokens_details", "reasoning_tokens"),
                    *("created_cache_tokens", "multimodal_tokens", "image"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_whatever_a_worker_sends_is_within_the_bounds(value):
    read = read_usage(value, BOUNDS)
    parts = dict(read.prompt_details)
    media = parts.pop("multimodal_tokens", {})
    for count, most in (
        (read.prompt_tokens, 100),
        (read.output_tokens, 20),
        (read.cached_tokens, read.prompt_tokens or 0),
        *((each, read.output_tokens or 0) for each in read.output_details.values()),
        *((each, read.prompt_tokens or 0) for each in parts.values()),
        *((each, read.prompt_tokens or 0) for each in media.values()),
    ):
        assert count is None or (type(count) is int and 0 <= count <= most)
