"""The usage of an answer, whatever its worker reports: within the bounds of its call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.base import WorkerStreamError
from fairserve.engine.wire.reported_usage import UsageBounds
from fairserve.interactions.call import NO_USAGE
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.throttling.quotas.price import TokenPrice

TEXT = "abcdefgh " * 40
"""360 bytes, 90 tokens by the estimate."""
MOST = 200
ODD = [
    *(None, {}, "oops", [1], 7, 0.5, True),
    {"prompt_tokens": 12},
    *(
        {"prompt_tokens": 12, "completion_tokens": each}
        for each in (None, 0, -5, 90.0, "90", True, [], {}, MOST + 1, 10**6, 2**53, 2**63, 1e30)
    ),
    {"prompt_tokens": 12, "total_tokens": 102},
    {"prompt_tokens": 12, "completion_tokens": 1},
]
"""Usages that say nothing usable of an output of 360 bytes."""


def meter(most=MOST, prompt=12, most_prompt=300):
    return UsageMeter(prompt, 0, UsageBounds(most_prompt, most))


def delta(content=None, **fields):
    return {"choices": [{"index": 0, "delta": {"content": content, **fields}}]}


def whole(**message):
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}}]}


def usage(output, prompt=12, cached=None, reasoning=None):
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return {"usage": counts}


def read(*chunks, **bounds):
    made = meter(**bounds)
    for chunk in chunks:
        made.read(chunk)
    return made


def streamed(odd=None, at="end"):
    """Return the chunks of a streamed text, with a usage of the worker's somewhere."""
    words = [delta(word + " ") for word in TEXT.split()]
    reports = {"choices": [], "usage": odd}
    if at == "first":
        return [delta("") | {"usage": odd}, *words]
    if at == "every":
        return [each | {"usage": odd} for each in words]
    return [*words, reports]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("at", ["first", "every", "end", "whole", "text"])
def test_an_unusable_usage_means_the_estimate(odd, at):
    if at == "whole":
        made = read(whole(content=TEXT) | {"usage": odd})
    elif at == "text":
        made = read({"choices": [{"index": 0, "text": TEXT}], "usage": odd})
    else:
        made = read(*streamed(odd, at))
    assert 88 <= made.total().output_tokens <= 92
    assert made.shown(made.total())["completion_tokens"] == made.total().output_tokens
    assert made.shown(made.total())["prompt_tokens"] == 12


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x" * 100},
        {"content": [{"type": "text", "text": "x" * 100}]},
        {"content": None, "reasoning_content": "x" * 100},
        {"content": None, "refusal": "x" * 100},
        {"tool_calls": [{"function": {"name": "f" * 10, "arguments": "x" * 90}}]},
        {"function_call": {"name": "f" * 10, "arguments": "x" * 90}},
    ],
    ids=lambda message: next(reversed(message)),
)
def test_every_kind_of_output_is_estimated(message):
    assert read(whole(**message)).total().output_tokens == 25
    assert read(delta(**message)).total().output_tokens == 25


def test_a_usable_count_covers_the_text_before_it():
    assert (
        read(*streamed({"prompt_tokens": 12, "completion_tokens": 70})).total().output_tokens == 70
    )
    later = read(delta("x" * 40) | usage(5), delta("x" * 40), delta("x" * 40))
    assert later.usage().output_tokens == 7, "two chunks more"
    assert later.total().output_tokens == 25, "80 bytes more"


def test_the_number_only_grows_while_the_call_runs():
    made, seen = meter(), []
    for chunk in (delta("a"), delta("b"), delta("c") | usage(2), delta("d"), delta("e") | usage(4)):
        made.read(chunk)
        seen.append(made.usage().output_tokens)
    assert seen == [1, 2, 2, 3, 4]


def test_estimates_are_at_most_what_the_call_may_generate():
    assert read(delta("x" * 39 + " "), most=5).total().output_tokens == 5
    assert read(*(delta("a") for _ in range(9)), most=5).usage().output_tokens == 5
    assert read(whole(content="x" * 200), most=5).total().output_tokens == 5
    assert read(delta("a") | usage(6), most=5).total().output_tokens == 1, "a claim is no estimate"


@pytest.mark.parametrize("claimed", [0, 301, 10**15, -1, 12.0, "12", None])
def test_an_unusable_count_of_the_prompt_means_our_own(claimed):
    assert read(delta("a") | usage(1, prompt=claimed)).total().prompt_tokens == 12


def test_cached_tokens_are_at_most_the_prompt():
    over = read(delta("a") | usage(1, cached=13))
    assert (over.total().cached_tokens, over.cached_tokens_reported) == (0, False)
    assert "prompt_tokens_details" not in over.shown(over.total())
    known = read(delta("a") | usage(1, cached=4))
    assert known.shown(known.total())["prompt_tokens_details"] == {"cached_tokens": 4}
    assert known.cached_tokens_reported


def test_other_parts_of_prompt_and_output_are_passed_on():
    """Those of OpenAI and of vLLM; a count that is none, or more than the whole, is not."""
    media = {"image": 5, "audio": 13, "hidden": 1}
    prompt = {"audio_tokens": 2, "created_cache_tokens": 8, "multimodal_tokens": media, "x": 1}
    output = {"audio_tokens": 1, "accepted_prediction_tokens": 3, "rejected_prediction_tokens": -1}
    counts = usage(4, cached=4)["usage"] | {"completion_tokens_details": output}
    counts["prompt_tokens_details"] |= prompt
    meter = read(delta("a") | {"usage": counts})
    answer = meter.shown(meter.total())
    assert answer["prompt_tokens_details"] == {
        "cached_tokens": 4,
        "audio_tokens": 2,
        "created_cache_tokens": 8,
        "multimodal_tokens": {"image": 5},
    }
    assert answer["completion_tokens_details"] == {
        "audio_tokens": 1,
        "accepted_prediction_tokens": 3,
    }


def test_reasoning_tokens_are_a_part_of_the_output():
    made = read(delta("a") | usage(4, reasoning=3), delta("b") | usage(9, reasoning=2))
    assert made.usage().reasoning_tokens == made.total().reasoning_tokens == 3, (
        "it does not decrease"
    )
    over = read(delta("a") | usage(4, reasoning=5))
    assert over.total().reasoning_tokens == 0, "more than the output"


def test_a_client_is_shown_usable_numbers_only():
    odd = {"prompt_tokens": 2**60, "completion_tokens": 10**15, "total_tokens": -1, "cost": 1e9}
    chunk = delta("abcd") | {"usage": odd}
    made = read(chunk)
    expected = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    assert made.shown(made.total()) == expected
    made.show(chunk)
    assert chunk["usage"] == expected
    made.show(without := delta("abcd") | {"usage": None})
    assert without["usage"] is None


def test_an_answer_that_has_not_begun_has_used_nothing():
    assert meter().usage() == meter().total() == NO_USAGE


# --- answers that are too long ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "chunks"),
    [
        (delta("word "), 600),
        (delta("w"), 5_000),
        (delta("x" * 65_536), 1),
        (delta(tool_calls=[{"index": 0, "function": {"arguments": "x" * 512}}]), 100),
        (delta(odd={"a": 1}), 5_000),
        (delta(""), 9_000),
        ({"choices": []}, 9_000),
        (delta("word ") | usage(1), 600),
        (whole(content="x" * 65_536), 1),
    ],
    ids=["words", "letters", "long", "tool", "no text", "empty", "nothing", "usage", "whole"],
)
def test_an_answer_that_runs_on_is_the_workers_failure(chunk, chunks):
    made = meter(most=MOST)
    with pytest.raises(WorkerStreamError, match="longer than the 200 tokens") as raised:
        any(made.read(chunk) for _ in range(chunks))
    assert raised.value.cause == "failed"
    assert made.total().output_tokens <= MOST


@pytest.mark.parametrize(
    ("chunk", "chunks"),
    [
        (delta("word "), MOST),
        (delta("w"), 5 * MOST),
        (delta("w" * 39 + " "), MOST),
        (delta(" " * 128), MOST),
        (delta(""), 4_000),
    ],
    ids=["words", "letters", "long words", "longest tokens", "heartbeats"],
)
def test_an_answer_of_the_allowed_length_is_not_cut(chunk, chunks):
    read(*[chunk] * chunks)


PRICE = TokenPrice(input=3_000, cached=5_000, output=70_000, reasoning=90_000)
COUNT = st.one_of(
    st.integers(-5, 300), st.sampled_from([None, 2**63, 1e30, "3", True, 2.0, [], {}])
)
CHUNK = st.builds(
    lambda text, *counts: delta(text) | usage(*counts),
    st.text(max_size=20),
    COUNT,
    COUNT,
    COUNT,
    COUNT,
)


@given(st.lists(CHUNK, max_size=20), st.integers(1, 30), st.integers(1, 3))
def test_no_stream_is_charged_beyond_its_bounds(chunks, limit, samples):
    made = meter(most=limit * samples, prompt=12, most_prompt=40)
    before = 0
    for chunk in chunks:
        made.read(chunk)
        now = made.usage()
        assert before <= now.output_tokens <= limit * samples
        before = now.output_tokens
    for used in (made.usage(), made.total()):
        assert 0 <= used.output_tokens <= limit * samples
        assert 0 <= used.cached_tokens <= used.prompt_tokens <= 40
        assert 0 <= used.reasoning_tokens <= used.output_tokens
        assert PRICE.cost(used) <= PRICE.most(40, limit * samples)
    if any(chunk["choices"][0]["delta"]["content"] for chunk in chunks):
        assert made.total().output_tokens > 0
