"""A value that is invalid for every worker is rejected by name; others are passed on unchanged."""

import pytest
from pydantic import ValidationError

from fairserve.platform.serving.completions.schemas import ChatBody, TextBody, invalid

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1: "),
        ({"temperature": float("nan")}, "temperature", "temperature is nan: "),
        ({"top_p": 0.0}, "top_p", "greater than 0"),
        ({"top_k": -2}, "top_k", "top_k is -2: "),
        ({"min_p": 1.5}, "min_p", "min_p is 1.5: "),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty is 2.5: "),
        ({"frequency_penalty": float("nan")}, "frequency_penalty", "nan"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "top_logprobs is 21: "),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"seed": "secret"}, "seed", "valid integer"),
    ],
)
def test_the_field_and_its_value_are_named(change, param, message):
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate(CHAT | change)
    error = invalid(caught.value, CHAT | change)
    assert error.param == param
    assert error.message.startswith(param)
    assert message in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": -1, "min_p": 0, "min_tokens": 0},
        {"top_k": 40, "min_p": 0.1, "min_tokens": 5, "logit_bias": {"5": 1}},
        {"logprobs": True, "top_logprobs": 20},
        {"top_logprobs": 0},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_fields_that_a_worker_may_honour_are_accepted(change):
    ChatBody.model_validate(CHAT | change)


def test_log_probabilities_of_completions_are_a_number():
    assert TextBody.model_validate({"model": "m", "prompt": "x", "logprobs": 5}).logprobs == 5
    with pytest.raises(ValidationError):
        TextBody.model_validate({"model": "m", "prompt": "x", "logprobs": True})
