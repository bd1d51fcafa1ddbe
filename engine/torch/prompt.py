"""From a request to the token ids of its prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from jinja2 import TemplateError

from fairserve.engine.torch.openai_request import GenerationRequest, RequestError
from fairserve.interactions.call import TokenIds

_INLINE_CHARACTERS = 16_384
"""Longer prompts are tokenised in a thread, so that the event loop stays free."""


class PromptEncoder:
    """Applies the chat template and tokenises. ``vocabulary`` bounds the ids that it lets pass."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    async def encode(self, request: GenerationRequest) -> TokenIds:
        """The prompt's token ids. Raises RequestError if there is no such prompt."""
        if isinstance(request.prompt, list):
            return self._checked(request.prompt)
        size = len(request.prompt) + sum(len(each["content"]) for each in request.messages)
        if size <= _INLINE_CHARACTERS:
            return self._encode_text(request)
        return await asyncio.to_thread(self._encode_text, request)

    def _encode_text(self, request: GenerationRequest) -> TokenIds:
        if request.kind == "completion":
            return self._checked(self._tokenizer(request.prompt)["input_ids"])
        try:
            text = self._tokenizer.apply_chat_template(
                request.messages, add_generation_prompt=True, tokenize=False
            )
        except (TemplateError, ValueError) as error:
            # ValueError: the model has no chat template.
            raise RequestError(f"the chat template refuses this: {error}", "messages") from error
        return self._checked(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _checked(self, ids: list[int]) -> TokenIds:
        if not ids:
            raise RequestError("the prompt has no tokens", "prompt")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise RequestError(
                f"a token id is not in the vocabulary; allowed: 0 to {self._vocabulary - 1}",
                "prompt",
            )
        return np.array(ids, dtype=np.uint32)
