"""Tokenises prompts, only to route and to count: the worker gets the call as it came.

The chat template and the tokenizer are the model's own. *System tokens* are those of the rendered
leading system and developer messages and tool definitions (ALGORITHMS section 0). A short prompt is
tokenised at once, a longer one in a thread: the event loop is never blocked for a millisecond.

Weakness: what a template makes of images, and templates given per request, are not counted.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairserve.engine.torch.model_hub import ask_hub, is_here
from fairserve.interactions.call import TokenIds
from fairserve.platform.completions.schemas import ChatBody, TextBody
from fairserve.platform.errors import InvalidRequestError

INLINE_CHARS = 2_000
"""Longer texts go to the threads; so many characters take about half a millisecond."""
THREADS = 4
SYSTEM_ROLES = ("system", "developer")
ESTIMATE = "estimate"
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt."""

    token_ids: TokenIds
    system_tokens: int
    exact: bool = True
    """Whether the count is that of the model. An estimate rejects nothing."""

    @property
    def input_tokens(self) -> int:
        """Tokens that are not system tokens."""
        return len(self.token_ids) - self.system_tokens


class PromptCounter(Protocol):
    """Renders and tokenises for one model. Called from several threads at once."""

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Prompt:
        """Raises InvalidRequestError naming ``messages`` if the template refuses them."""
        ...

    def text(self, text: str) -> Prompt:
        """A plain prompt."""
        ...


class TemplateCounter:
    """With a transformers tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Prompt:
        """See :class:`PromptCounter`."""
        plain = [_flat(message) for message in messages]
        text = self._render(plain, tools, complete=True)
        encoding = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        ids = np.asarray(encoding.ids, dtype=np.uint32)
        system_chars = self._system_chars(text, plain, tools)
        if system_chars == 0:
            return Prompt(ids, 0)
        if system_chars >= len(text):
            return Prompt(ids, len(ids))
        token = encoding.char_to_token(system_chars)
        return Prompt(ids, len(ids) if token is None else int(token))

    def text(self, text: str) -> Prompt:
        """See :class:`PromptCounter`."""
        encoding = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=True)
        return Prompt(np.asarray(encoding.ids, dtype=np.uint32), 0)

    def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, complete: bool
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=complete, tokenize=False
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequestError(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error
        return str(text)

    def _system_chars(
        self, text: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> int:
        """How much of the rendered prompt comes from system messages and tools alone."""
        leading = leading_system_messages(messages)
        if not leading and not tools:
            return 0
        try:
            alone = self._render(messages[:leading], tools, complete=False)
        except InvalidRequestError:
            # Some templates want a user message; its own text differs from any real one early on.
            user = {"role": "user", "content": "\x00"}
            alone = self._render([*messages[:leading], user], tools, complete=False)
        return _common_prefix(text, alone)


class BytesCounter:
    """Without a tokenizer: one token for four bytes. An estimate; the worker's own count is kept."""

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Prompt:
        """See :class:`PromptCounter`."""
        parts = [f"{m.get('role')}\n{_flat(m).get('content') or ''}\n" for m in messages]
        leading = leading_system_messages(messages)
        system = (str(tools) if tools else "") + "".join(parts[:leading])
        head = _four_byte_ids(system)
        tail = _four_byte_ids("".join(parts[leading:]))
        return Prompt(np.concatenate([head, tail]), len(head), exact=False)

    def text(self, text: str) -> Prompt:
        """See :class:`PromptCounter`."""
        return Prompt(_four_byte_ids(text), 0, exact=False)


class PromptReader:
    """Counts prompts without blocking the event loop."""

    def __init__(self, counter: PromptCounter, source: str = ESTIMATE) -> None:
        self.exact = not isinstance(counter, BytesCounter)
        """Whether counts are those of the model."""
        self.source = source
        """Folder or hub id of the tokenizer, or ``estimate``."""
        self._counter = counter
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenizer")

    async def chat(self, body: ChatBody, messages: list[dict[str, Any]]) -> Prompt:
        """The prompt of a chat request; ``messages`` are those of the original JSON."""
        size = sum(_size(message) for message in messages) + (len(str(body.tools or "")))
        if size <= INLINE_CHARS:
            return self._counter.chat(messages, body.tools)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._counter.chat, messages, body.tools)

    async def text(self, body: TextBody) -> Prompt:
        """The prompt of a completion request."""
        prompt = body.only_prompt
        if isinstance(prompt, list):
            return Prompt(np.asarray(prompt, dtype=np.uint32), 0)
        if len(prompt) <= INLINE_CHARS:
            return self._counter.text(prompt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._counter.text, prompt)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class NoTokenizerError(Exception):
    """There is no usable tokenizer of that name. The message is the reason."""


def load_counter(name: str | Path, *, fetch: bool = False) -> PromptCounter:
    """The counter of a checkpoint folder or hub id. Raises NoTokenizerError.

    Without ``fetch`` only folders and the hub's local cache are looked at. Slow (seconds, it imports
    transformers): call it in a thread.
    """
    try:
        if fetch:
            ask_hub(str(name), TOKENIZER_FILES[0])
        elif not is_here(str(name), *TOKENIZER_FILES):
            raise NoTokenizerError("it is neither a folder nor in the hub's cache on this host")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(name), local_files_only=not fetch)
    except NoTokenizerError:
        raise
    except Exception as error:  # libraries of tokenizers raise what they like
        raise NoTokenizerError(" ".join(str(error).split())[:200]) from error
    if not hasattr(tokenizer, "backend_tokenizer") or not tokenizer.chat_template:
        raise NoTokenizerError("it has no chat template")
    return TemplateCounter(tokenizer)


def leading_system_messages(messages: list[dict[str, Any]]) -> int:
    """How many messages at the beginning are from the system or the developer."""
    leading = 0
    while leading < len(messages) and messages[leading].get("role") in SYSTEM_ROLES:
        leading += 1
    return leading


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose text parts are one string, as templates of text models expect it."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [str(part["text"]) for part in content if isinstance(part.get("text"), str)]
    return {**message, "content": "\n".join(texts)}


def _size(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return len(str(content)) if content else 0


def _common_prefix(text: str, other: str) -> int:
    """Length of the longest common prefix; O(n log n) in C."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _four_byte_ids(text: str) -> TokenIds:
    data = text.encode("utf-8", "replace")
    data += b"\x00" * (-len(data) % 4)
    return np.frombuffer(data, dtype="<u4").astype(np.uint32)
