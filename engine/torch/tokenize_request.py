"""Reads the body of vLLM's /tokenize: a prompt or the messages of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.engine.torch.openai_fields import Body, RequestError
from fairserve.engine.torch.openai_prompt import Messages, plain


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A checked request. Either ``messages`` or ``prompt`` is given."""

    model: str
    """Name of the model; empty: the served one."""
    messages: list[dict[str, str]]
    prompt: str
    add_generation_prompt: bool
    """True to append the start of the answer to the messages."""
    add_special_tokens: bool
    """True to add the tokenizer's special tokens to a prompt. Chat templates add them themselves."""


class _TokenizeBody(Body):
    model: str = ""
    messages: Messages | None = None
    prompt: str | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True


def parse_tokenize(body: Any) -> TokenizeRequest:
    """Return the validated request of a decoded JSON body. Raises RequestError naming the field."""
    read = _TokenizeBody.read(body)
    if (read.messages is None) == (read.prompt is None):
        raise RequestError("either messages or prompt must be given", "messages")
    return TokenizeRequest(
        model=read.model,
        messages=plain(read.messages or []),
        prompt=read.prompt or "",
        add_generation_prompt=read.add_generation_prompt,
        add_special_tokens=read.add_special_tokens,
    )
