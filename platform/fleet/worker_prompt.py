"""Counts prompts with the worker's own tokenizer: ``/tokenize``, of vLLM and of the embedded engine.

For models whose tokenizer is not to be had here: a name of the operator's own, a host without the
internet. Counts and token ids are those of the worker, so limits by tokens and the router's view of its
cache are exact. The system tokens are the beginning that the prompt shares with its leading system
messages alone.

Weakness: one more request for each call, two with system messages, some milliseconds each. While no
worker can be asked, counts are estimates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from fairserve.engine.wire.base import WorkerRejectedError, WorkerUnavailableError
from fairserve.interactions.call import TokenIds
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompt import (
    BytesCounter,
    Prompt,
    leading_system_messages,
)

logger = logging.getLogger(__name__)

Tokenize = Callable[[Mapping[str, Any]], Awaitable[TokenIds]]
"""Asks a worker; raises WorkerUnavailableError, or WorkerRejectedError for a prompt that is wrong."""


class WorkerPromptReader:
    """The counterpart of :class:`~fairserve.platform.fleet.prompt.PromptReader`."""

    exact = True
    source = "worker"
    takes_media = True
    """Nobody here knows whether the model takes images or sound."""

    def __init__(self, model: str, tokenize: Tokenize) -> None:
        """``model`` is what the workers call it."""
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
    ) -> Prompt:
        """Return the prompt of a chat request; ``tenant`` and ``max_tokens`` have no effect.

        Raises InvalidRequestError naming ``messages`` if the worker's template refuses them.
        """
        leading = leading_system_messages(messages)
        try:
            whole, system = await asyncio.gather(
                self._chat_ids(messages, tools, complete=True),
                self._system_ids(messages[:leading], tools),
            )
        except WorkerRejectedError as error:
            raise InvalidRequestError(f"messages: {error}", param="messages") from error
        except WorkerUnavailableError as error:
            self._warn(error)
            return self._estimate.chat(messages, tools)
        return Prompt(whole, _common_prefix(whole, system))

    async def text(
        self, prompt: str | list[int], *, tenant: str = "", max_tokens: int | None = None
    ) -> Prompt:
        """Return the prompt of a completion request: text, or token ids."""
        if isinstance(prompt, list):
            return Prompt(np.asarray(prompt, dtype=np.uint32), 0)
        try:
            ids = await self._tokenize({"model": self._model, "prompt": prompt})
        except WorkerRejectedError as error:
            raise InvalidRequestError(f"prompt: {error}", param="prompt") from error
        except WorkerUnavailableError as error:
            self._warn(error)
            return self._estimate.text(prompt)
        return Prompt(ids, 0)

    def close(self) -> None:
        """Nothing is open."""

    async def _chat_ids(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, complete: bool
    ) -> TokenIds:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "add_generation_prompt": complete,
        }
        if tools:
            body["tools"] = tools
        return await self._tokenize(body)

    async def _system_ids(
        self, leading: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> TokenIds:
        if not leading and not tools:
            return np.zeros(0, dtype=np.uint32)
        try:
            return await self._chat_ids(leading, tools, complete=False)
        except WorkerRejectedError:
            # Some templates want a user message; its own text differs from any real one early on.
            user = {"role": "user", "content": "\x00"}
            return await self._chat_ids([*leading, user], tools, complete=True)

    def _warn(self, error: Exception) -> None:
        logger.warning("no worker of %s counts its prompts (%s): estimated", self._model, error)


def _common_prefix(one: TokenIds, other: TokenIds) -> int:
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
