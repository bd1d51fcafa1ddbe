"""Reads the body of vLLM's /tokenize: a prompt or the messages of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.engine.torch.openai.fields import OpenAIBody, RequestError
from fairserve.engine.torch.openai.prompt import (
    Messages,
    TemplateVariables,
    plain,
    prompt_options,
)
from fairserve.engine.wire.prompt_options import PromptOptions


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A checked request. Either ``messages`` or ``prompt`` is given."""

    model: str
    """Name of the model; empty: the served one."""
    messages: list[dict[str, Any]]
    prompt: str
    options: PromptOptions


class _TokenizeBody(OpenAIBody):
    model: str = ""
    messages: Messages | None = None
    prompt: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None


def parse_tokenize(body: Any) -> TokenizeRequest:
    """Return the validated request of a decoded JSON body. Raises RequestError naming the field."""
    read = _TokenizeBody.read(body)
    if (read.messages is None) == (read.prompt is None):
        raise RequestError("either messages or prompt must be given", "messages")
    options = prompt_options(read)
    if problem := options.problem():
        raise RequestError(problem, "continue_final_message")
    return TokenizeRequest(
        model=read.model,
        messages=plain(read.messages or []),
        prompt=read.prompt or "",
        options=options,
    )
