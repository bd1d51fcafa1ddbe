"""Sampling options at the ends of their ranges are rejected by name, or end no other sequence."""

import asyncio
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.torch.events import Failed, Generated
from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.openai.request import parse
from fairserve.engine.torch.prompt import PromptEncoder

PROMPT = list(b"Once upon a time")
MAX_TOKENS = 4

TINY, HUGE = 5e-324, 1e308
EXTREMES = {
    "temperature": [0, TINY, 1e-300, 9.9e-6, 1e-5, 2, 2.1, HUGE, -1],
    "top_p": [0, TINY, 1e-300, 1e-7, 0.999999999999, 1, 1.1],
    "top_k": [-2, -1, 0, 1, 1025, 2**31 - 1, 2**31, 2**63, 2**200],
    "min_p": [TINY, 1e-300, 1, 1.0000001],
    "presence_penalty": [-2, 2, TINY, -2.1, HUGE],
    "frequency_penalty": [-2, 2, TINY, 2.1, -HUGE],
    "repetition_penalty": [TINY, 1e-300, 1e-40, 1e-10, 0.009, 0.01, 0.0101, 10, 10.1, HUGE],
    "logit_bias": [
        {"0": 100, "65": -100},
        {str(token): -100 for token in range(257)},
        {str(token): 100 for token in range(257)},
        {"65": TINY},
        {"65": HUGE},
        {"9999999999": 1},
        {"-1": 1},
        {"٣": 1},
    ],
    "allowed_token_ids": [[65], [256], [2**63], [2**200], [-1], list(range(1024)), []],
    "stop_token_ids": [[65], list(range(257)), [2**63], [-1], [2**200]],
    "bad_words": [["t"], [chr(code) for code in range(1, 128)], ["\U0010ffff"], ["e" * 200], [""]],
    "seed": [-(2**63), 2**63 - 1, 2**63, 2**200, 0],
    "stop": ["e", ["\U0010ffff"], ["x" * 10_000], [""], ["e"] * 16, ["e"] * 17],
    "min_tokens": [1, MAX_TOKENS, MAX_TOKENS + 1, 2**63, -1],
    "ignore_eos": [True],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "logprobs": [0, 5, 6, 2**63],
}
CASES = [
    pytest.param(field, value, id=f"{field}-{index}")
    for field, values in EXTREMES.items()
    for index, value in enumerate(values)
]


def params_of(builtin, options):
    """Return the checked options of a request, as the worker reads it. Raises RequestError."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 1, "seed": 7}
    request = parse("completion", json.loads(json.dumps(body | options)))
    encoder = PromptEncoder(builtin.tokenizer, builtin.vocabulary)

    async def checked():
        await encoder.encode(request)
        return await encoder.bad_words(request.bad_words)

    return request.params(MAX_TOKENS, 0, None, asyncio.run(checked()))


def beside_neighbours(make_bench, builtin, params):
    """Run a sequence with two quiet ones; return its events and the texts of the quiet ones."""
    bench = make_bench(builtin)
    bench.add("greedy", PROMPT, 8)
    bench.add("seeded", PROMPT, 8, temperature=1.0, seed=3)
    if params is not None:
        bench.add_params("extreme", PROMPT, params)
    bench.run()
    return bench, [bench.text("greedy"), bench.text("seeded")]


@pytest.fixture(scope="module")
def quiet(new_bench, builtin):
    """Return the texts of the two quiet sequences without a third one, by whether steps overlap."""
    return {
        overlap: beside_neighbours(partial(new_bench, overlap=overlap), builtin, None)[1]
        for overlap in (False, True)
    }


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.parametrize(("field", "value"), CASES)
def test_an_extreme_value_is_rejected_by_name_or_served(
    new_bench, builtin, quiet, field, value, overlap
):
    params, rejected = None, None
    try:
        params = params_of(builtin, {field: value})
    except RequestError as error:
        rejected = error.param
    if params is None:
        assert rejected.startswith(field)
        return
    bench, texts = beside_neighbours(partial(new_bench, overlap=overlap), builtin, params)
    assert texts == quiet[overlap]
    assert not bench.of("extreme", Failed)
    assert bench.finish_reason("extreme") in ("stop", "length")


@given(
    options=st.fixed_dictionaries(
        {}, optional={field: st.sampled_from(values) for field, values in EXTREMES.items()}
    )
)
def test_extreme_values_together_end_no_other_sequence(new_bench, builtin, quiet, options):
    # A combination is served only if each value is allowed.
    allowed = {}
    for field, value in options.items():
        try:
            params_of(builtin, allowed | {field: value})
        except RequestError:
            continue
        allowed[field] = value
    params = params_of(builtin, allowed)
    for overlap in (False, True):
        make = partial(new_bench, overlap=overlap)
        bench, texts = beside_neighbours(make, builtin, params)
        assert texts == quiet[overlap]
        assert bench.of("extreme", Failed) or bench.of("extreme", Generated)[-1].finish_reason
