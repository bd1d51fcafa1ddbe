"""Count prompts with the worker's tokenizer: ``/tokenize`` of vLLM and the embedded engine.

This serves models whose tokenizer is not available on this host: a custom name, or no internet access.
Counts and token ids are the worker's, so token limits and the router's view of its cache are exact. The
system tokens are the common prefix of the prompt and its leading system messages alone.

Cost: one more request per call, two with system messages, some milliseconds each. Weakness: counts are
estimates while no worker responds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairserve.engine.wire.base import WorkerRejectedError, WorkerUnavailableError
from fairserve.engine.wire.prompt_options import DEFAULT_PROMPT, PromptOptions
from fairserve.interactions.call import TokenIds
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompts.reader import (
    BytesCounter,
    Prompt,
    leading_system_messages,
)

logger = logging.getLogger(__name__)

Tokenize = Callable[[Mapping[str, Any]], Awaitable[TokenIds]]
"""Tokenises at a worker; raises WorkerUnavailableError, or WorkerRejectedError for a bad prompt."""


class WorkerPromptReader:
    """The counterpart of :class:`~fairserve.platform.fleet.prompts.reader.PromptReader`."""

    exact = True
    source = "worker"
    takes_media = True
    """True: the model may accept images or sound."""

    def __init__(self, model: str, tokenize: Tokenize) -> None:
        """``model`` is its name at the workers."""
        self._model = model
        self._tokenize = tokenize
        self._estimate = BytesCounter()

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
    ) -> Prompt:
        """Return the prompt of a chat request; ``tenant`` and ``max_tokens`` have no effect.

        Raises InvalidRequestError with the field ``messages`` if the worker's template rejects them.
        """
        leading = leading_system_messages(messages)
        try:
            whole, system = await asyncio.gather(
                self._chat_ids(messages, tools, options),
                self._system_ids(messages[:leading], tools, options),
            )
        except WorkerRejectedError as error:
            raise InvalidRequestError(f"messages: {error}", param="messages") from error
        except WorkerUnavailableError as error:
            self._warn(error)
            return self._estimate.chat(messages, tools)
        return Prompt(whole, _common_prefix(whole, system))

    async def text(
        self,
        prompt: str | list[int],
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
    ) -> Prompt:
        """Return the prompt of a completion request: text, or token ids."""
        if isinstance(prompt, list):
            return Prompt(np.asarray(prompt, dtype=np.uint32), 0)
        body = {"model": self._model, "prompt": prompt, **options.fields()}
        try:
            ids = await self._tokenize(body)
        except WorkerRejectedError as error:
            raise InvalidRequestError(f"prompt: {error}", param="prompt") from error
        except WorkerUnavailableError as error:
            self._warn(error)
            return self._estimate.text(prompt)
        return Prompt(ids, 0)

    async def sizes(
        self, texts: Sequence[str], *, tenant: str = "", max_tokens: int | None = None
    ) -> tuple[list[int], bool]:
        """Return the tokens of each text, and whether the numbers are exact.

        Several texts are estimated: each would be a request of its own to the worker.
        """
        if len(texts) == 1:
            prompt = await self.text(texts[0])
            return [prompt.input_tokens], prompt.exact
        return self._estimate.sizes(texts), False

    def close(self) -> None:
        """Do nothing; no resource is open."""

    async def _chat_ids(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: PromptOptions,
    ) -> TokenIds:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "add_generation_prompt": options.generation_prompt,
            **options.fields(),
        }
        if tools:
            body["tools"] = tools
        return await self._tokenize(body)

    async def _system_ids(
        self,
        leading: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: PromptOptions,
    ) -> TokenIds:
        if not leading and not tools:
            return np.zeros(0, dtype=np.uint32)
        try:
            alone = PromptOptions(False, template=options.template)
            return await self._chat_ids(leading, tools, alone)
        except WorkerRejectedError:
            # Some templates require a user message; this text differs early from any real one.
            user = {"role": "user", "content": "\x00"}
            whole = PromptOptions(template=options.template)
            return await self._chat_ids([*leading, user], tools, whole)

    def _warn(self, error: Exception) -> None:
        logger.warning("no worker of %s tokenises (%s): estimating tokens", self._model, error)


def _common_prefix(one: TokenIds, other: TokenIds) -> int:
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
