"""A value that is invalid for every worker is rejected by name; others are passed on unchanged."""

import pytest
from pydantic import ValidationError

from fairserve.engine.wire.request_fields import listed_fields
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.batches.schemas import BatchCreate
from fairserve.platform.serving.completions.schemas import ChatBody, TextBody, invalid
from fairserve.platform.serving.embeddings.schemas import EmbeddingBody, RerankBody
from fairserve.platform.serving.messages.schemas import MessageBody
from fairserve.platform.serving.responses.schemas import ResponseBody, read_body

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


MANY = 1_500
NAMES = {f"f{number}": 1 for number in range(MANY)}


@pytest.mark.parametrize("wrong", [1, None, {}], ids=repr)
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (ChatBody, "messages"),
        (ChatBody, "messages.0.content"),
        (ChatBody, "messages.0.tool_calls"),
        (ChatBody, "tools"),
        (ChatBody, "stop"),
        (ChatBody, "bad_words"),
        (ChatBody, "stop_token_ids"),
        (ChatBody, "allowed_token_ids"),
        (ChatBody, "structured_outputs.choice"),
        (TextBody, "prompt"),
        (TextBody, "prompt.0"),
        (EmbeddingBody, "input"),
        (EmbeddingBody, "input.0"),
        (RerankBody, "documents"),
        (ResponseBody, "input"),
        (ResponseBody, "include"),
        (ResponseBody, "tools"),
        (MessageBody, "messages"),
        (MessageBody, "messages.0.content"),
        (MessageBody, "messages.0.content.0.content"),
        (MessageBody, "system"),
        (MessageBody, "stop_sequences"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_list_of_wrong_values_is_a_few_problems(kind, field, wrong):
    assert problems(kind, placed(field.split("."), [wrong] * MANY)) < 30


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (ResponseBody, ""),
        (MessageBody, ""),
        (BatchCreate, ""),
        (ChatBody, "stream_options"),
        (ChatBody, "tools.0.function"),
        (ChatBody, "response_format.json_schema"),
        (ResponseBody, "metadata"),
        (BatchCreate, "metadata"),
        (ChatBody, "logit_bias"),
        (ResponseBody, "text"),
        (MessageBody, "thinking"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_object_of_wrong_fields_is_a_few_problems(kind, field):
    body = placed(field.split("."), NAMES) if field else NAMES
    assert problems(kind, body) < 100


def placed(path, value):
    """Return a body with a value at a path."""
    for part in reversed(path):
        value = [value] if part.isdigit() else {part: value, "type": "tool_result"}
    return value


def problems(kind, body):
    """Return the number of problems that pydantic reports of a body."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(listed_fields(body) if kind is ChatBody else body)
    return caught.value.error_count()


def test_the_first_unknown_field_is_named_among_many():
    with pytest.raises(InvalidRequestError) as caught:
        read_body({"model": "m", "input": "x", **NAMES})
    assert (caught.value.param, caught.value.code) == ("f0", "unknown_parameter")
