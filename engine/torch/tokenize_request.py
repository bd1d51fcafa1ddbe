"""Reads the body of vLLM's /tokenize: a prompt or the messages of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.engine.torch.openai_fields import Fields, RequestError
from fairserve.engine.torch.openai_prompt import read_messages


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A checked request. Either ``messages`` or ``prompt`` is given."""

    model: str
    """Name of the model; empty: the served one."""
    messages: list[dict[str, str]]
    prompt: str
    add_generation_prompt: bool
    """True to add the beginning of the answer to the messages."""
    add_special_tokens: bool
    """True to add the tokenizer's own tokens to a prompt. Chat templates add theirs themselves."""


def parse_tokenize(body: Any) -> TokenizeRequest:
    """Check a decoded JSON body. Raises RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", None)
    fields = Fields(body)
    messages, prompt = fields.take("messages"), fields.take("prompt")
    if (messages is None) == (prompt is None):
        raise RequestError("either messages or prompt must be given", "messages")
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError("prompt must be a string", "prompt")
    request = TokenizeRequest(
        model=fields.text("model", ""),
        messages=[] if messages is None else read_messages(messages),
        prompt=prompt or "",
        add_generation_prompt=fields.flag("add_generation_prompt", default=True),
        add_special_tokens=fields.flag("add_special_tokens", default=True),
    )
    fields.reject_the_rest()
    return request
