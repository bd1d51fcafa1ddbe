"""Answers of OpenAI's protocols, validated strictly against the types of the openai package."""

import json

from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, TypeAdapter
from sse import data_of

ADDED = frozenset({"stop_reason"})
"""Fields beyond OpenAI's that our engine adds; docs/guide/apps.md documents them."""
ADDED_BY_VLLM = ADDED | {
    "reasoning",
    "token_ids",
    "prompt_token_ids",
    "prompt_text",
    "created_cache_tokens",
}
ADDED_TO_RESPONSES = frozenset({"store", "name"})
"""Fields that OpenAI documents and the package's types do not have: ``store`` of a response, and the
``name`` of ``response.function_call_arguments.done``."""

EVENTS_OF_A_TRUNCATED_TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]
"""Types of the events of a response that ends with its last allowed token, in order."""


def strictly(kind, plain, added=frozenset()):
    """Return an object whose values have their types, and whose fields are the type's or added."""
    found = TypeAdapter(kind).validate_json(json.dumps(plain), strict=True)
    unknown = set(_unknown(found)) - added
    assert not unknown, (kind, unknown, plain)
    return found


def _unknown(value):
    """Yield the fields that a type does not have, which the package accepts."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for _, each in value:
            yield from _unknown(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _unknown(each)
    elif isinstance(value, list):
        for each in value:
            yield from _unknown(each)


def chat_chunks(text, added=ADDED):
    """Return the chunks of a streamed chat call, whose last event is ``[DONE]``."""
    return [strictly(ChatCompletionChunk, plain, added) for plain in _chunks(text)]


def text_chunks(text, added=ADDED):
    """Return the chunks of a streamed text completion, whose last event is ``[DONE]``."""
    return [strictly(Completion, _finished(plain), added) for plain in _chunks(text)]


def _chunks(text):
    *events, last = data_of(text)
    assert last == "[DONE]"
    return map(json.loads, events)


def _finished(plain):
    """Return a chunk as a whole completion, whose type the package has: each choice has finished."""
    choices = [
        choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in plain["choices"]
    ]
    return plain | {"choices": choices}
