"""Converts a request to the token ids of its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import numpy as np
from jinja2 import TemplateError

from fairserve.engine.torch.bad_words import BadWords, word_tokens
from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.openai.request import GenerationRequest
from fairserve.engine.torch.tokenize_request import TokenizeRequest
from fairserve.engine.wire.prompt_options import PromptOptions
from fairserve.interactions.call import TokenIds

_INLINE_CHARACTERS = 16_384
"""Characters from which a prompt is tokenised in a thread, to keep the event loop responsive."""


class PromptEncoder:
    """Encoder that applies the chat template and tokenises. ``vocabulary`` bounds token ids."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    async def encode(self, request: GenerationRequest) -> TokenIds:
        """Return the prompt's token ids. Raises RequestError for an impossible prompt.

        The error is also raised if another field names a token that the model does not have.
        """
        self._check("logit_bias", request.logit_bias)
        self._check("stop_token_ids", request.stop_token_ids)
        self._check("allowed_token_ids", request.allowed_token_ids)
        if isinstance(request.prompt, list):
            return self._checked(request.prompt)
        size = len(request.prompt) + sum(len(each["content"]) for each in request.messages)
        if size <= _INLINE_CHARACTERS:
            return self._encode_text(request)
        return await asyncio.to_thread(self._encode_text, request)

    async def bad_words(self, words: tuple[str, ...]) -> BadWords | None:
        """Return the words' tokens; None without words. Raises RequestError."""
        if not words:
            return None
        try:
            if sum(map(len, words)) <= _INLINE_CHARACTERS:
                found = word_tokens(self._tokenizer, words)
            else:
                found = await asyncio.to_thread(word_tokens, self._tokenizer, words)
        except ValueError as error:
            raise RequestError(f"bad_words {error}", "bad_words") from error
        return BadWords(found)

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """Return the token ids of a ``/tokenize`` request. Raises RequestError."""
        size = len(request.prompt) + sum(len(each["content"]) for each in request.messages)
        if size <= _INLINE_CHARACTERS:
            return self._tokenize(request)
        return await asyncio.to_thread(self._tokenize, request)

    def _tokenize(self, request: TokenizeRequest) -> list[int]:
        if request.messages:
            return self._chat_ids(request.messages, request.options)
        return self._text_ids(request.prompt, special=request.options.special_tokens is not False)

    def _encode_text(self, request: GenerationRequest) -> TokenIds:
        if isinstance(request.prompt, str) and request.kind == "completion":
            special = request.prompt_options.special_tokens is not False
            return self._checked(self._text_ids(request.prompt, special=special))
        return self._checked(
            self._chat_ids(request.messages, request.prompt_options, request.tools.definitions)
        )

    def _text_ids(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids

    def _chat_ids(
        self,
        messages: list[dict[str, Any]],
        options: PromptOptions,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, **options.for_template()
            )
        except (TemplateError, ValueError) as error:
            # ValueError: the model has no chat template.
            raise RequestError(f"the chat template rejects this: {error}", "messages") from error
        return self._text_ids(text, special=bool(options.special_tokens))

    def _checked(self, ids: list[int]) -> TokenIds:
        if not ids:
            raise RequestError("the prompt has no tokens", "prompt")
        self._check("prompt", ids)
        return np.array(ids, dtype=np.uint32)

    def _check(self, name: str, ids: Collection[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self._vocabulary):
            raise RequestError(
                f"{name} has a token id that is not in the vocabulary; allowed: 0 to "
                f"{self._vocabulary - 1}",
                name,
            )
