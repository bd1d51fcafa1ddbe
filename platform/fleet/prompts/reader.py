"""Tokenise prompts for routing and counting; the worker gets the call unchanged.

The chat template and the tokenizer are the model's. *System tokens* are those of the rendered leading
system and developer messages and tool definitions (ALGORITHMS section 0). A short prompt is tokenised
on the event loop, a longer one in a thread, a large one in the threads for large prompts, and one that
is certainly too long not at all: nothing here runs on the event loop for a millisecond. What earlier
prompts of the tenant had is not tokenised again (:mod:`.pieces`).

Cost of a call: about 3 us for each new token, which rendering, finding known pieces and the thread add
0.2 ms to. Weakness: tokens of images are not counted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

from fairserve.engine.wire.prompt_options import DEFAULT_PROMPT, PromptOptions
from fairserve.interactions.call import TokenIds
from fairserve.platform.base.bulkhead import TurnThreads
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompts.pieces import PieceEncoder
from fairserve.platform.fleet.prompts.token_bound import chars_per_token
from fairserve.platform.fleet.prompts.tokenizer_files import (
    ModelTokenizer,
    NoTokenizerError,
    find_folder,
    read_tokenizer,
)

T = TypeVar("T")

INLINE_CHARS = 300
"""Characters above which a text is tokenised in a thread; this many take 0.3 ms, at most 0.7."""
INLINE_ESTIMATE_CHARS = 8_192
"""The same for an estimate: 10 us as one text, 0.6 ms as a thousand messages."""
CHARS_PER_WIDE = 8
"""Characters of ASCII that take as long to tokenise as one of another script, at most."""
CHARS_PER_TEXT = 16
"""Characters that take as long to tokenise as the overhead of one more text."""
LARGE_CHARS = 32_768
"""Characters above which a text is a large prompt, which takes tens of milliseconds or more."""
THREADS = 4
SYSTEM_ROLES = ("system", "developer")
ESTIMATE = "estimate"


class PromptTooLongError(Exception):
    """The prompt has at least ``tokens`` tokens, more than allowed; it was not tokenised."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt."""

    token_ids: TokenIds
    system_tokens: int
    exact: bool = True
    """True if the model's tokenizer counted. Calls are never rejected for an estimate."""
    counted_tokens: int = 0
    """Tokens of a prompt without token ids: several inputs, which share no prefix with other calls."""

    @property
    def input_tokens(self) -> int:
        """Return the number of tokens that are not system tokens."""
        return (self.counted_tokens or len(self.token_ids)) - self.system_tokens


class TemplateCounter:
    """Renders and tokenises for one model, with its tokenizer and chat template.

    Thread-safe. Methods raise PromptTooLongError for some prompts with more than ``max_tokens``.
    """

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        # The calling thread alone tokenises a prompt: the thread pools bound the parallelism.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._backend, self._template = tokenizer.backend, tokenizer.template
        self._encoder = PieceEncoder(self._backend, self._template.text if self._template else "")
        self.takes_media = tokenizer.takes_media
        """True if the model accepts images or sound, which lengthen bodies but are not counted."""
        self._chars_per_token = chars_per_token(self._backend)

    def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
        tenant: str = "",
    ) -> Prompt:
        """Return the prompt of a chat; InvalidRequestError if the template rejects ``messages``."""
        plain = [_plain(message) for message in messages]
        text = self._render(plain, tools, options.for_template())
        self._check_length(text, max_tokens)
        ids, system_tokens = self._encoder.encode(
            text,
            tenant,
            special=bool(options.special_tokens),
            mark=self._system_chars(text, plain, tools, options),
        )
        return Prompt(ids, len(ids) if system_tokens is None else system_tokens)

    def text(
        self,
        text: str,
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
        tenant: str = "",
    ) -> Prompt:
        """Return the prompt of a plain text."""
        self._check_length(text, max_tokens)
        ids, _ = self._encoder.encode(text, tenant, special=options.special_tokens is not False)
        return Prompt(ids, 0)

    def sizes(self, texts: Sequence[str], max_tokens: int | None = None) -> list[int]:
        """Return the tokens of each text; a lower bound for some with more than ``max_tokens``."""
        sizes = [self._at_least(text, max_tokens) for text in texts]
        rest = [number for number, size in enumerate(sizes) if not size]
        encodings = self._backend.encode_batch_fast([texts[n] for n in rest])
        for number, encoding in zip(rest, encodings, strict=True):
            sizes[number] = len(encoding)
        return sizes

    def _at_least(self, text: str, max_tokens: int | None) -> int:
        """Return the least tokens of a text if they are certainly more than the maximum; else 0."""
        if max_tokens is None or self._chars_per_token is None:
            return 0
        at_least = -(-len(text) // self._chars_per_token)
        return at_least if at_least > max_tokens else 0

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        if at_least := self._at_least(text, max_tokens):
            raise PromptTooLongError(at_least)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        arguments: Mapping[str, Any],
    ) -> str:
        if self._template is None:
            raise InvalidRequestError("messages: the model has no chat template", param="messages")
        try:
            return self._template.render(messages, tools, **arguments)
        except Exception as error:  # templates may raise anything
            raise InvalidRequestError(
                f"messages: the model's chat template rejects them: {error}", param="messages"
            ) from error

    def _system_chars(
        self,
        text: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: PromptOptions,
    ) -> int:
        """Return the number of rendered characters of the system messages and tools."""
        leading = leading_system_messages(messages)
        if not leading and not tools:
            return 0
        arguments = {**options.template, "add_generation_prompt": False}
        try:
            alone = self._render(messages[:leading], tools, arguments)
        except InvalidRequestError:
            # Some templates require a user message; this text differs early from any real one.
            user = {"role": "user", "content": "\x00"}
            alone = self._render([*messages[:leading], user], tools, arguments)
        return _common_prefix(text, alone)


class BytesCounter:
    """An estimate without a tokenizer: four bytes are one token. The worker's count replaces it."""

    def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
        tenant: str = "",
    ) -> Prompt:
        """See :class:`TemplateCounter`."""
        parts = [f"{m.get('role')}\n{_one_text(m)}\n{m.get('tool_calls') or ''}" for m in messages]
        leading = leading_system_messages(messages)
        system = (str(tools) if tools else "") + "".join(parts[:leading])
        head = _four_byte_ids(system)
        tail = _four_byte_ids("".join(parts[leading:]))
        return Prompt(np.concatenate([head, tail]), len(head), exact=False)

    def text(
        self,
        text: str,
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
        tenant: str = "",
    ) -> Prompt:
        """See :class:`TemplateCounter`."""
        return Prompt(_four_byte_ids(text), 0, exact=False)

    def sizes(self, texts: Sequence[str], max_tokens: int | None = None) -> list[int]:
        """See :class:`TemplateCounter`."""
        return [-(-len(text.encode("utf-8", "replace")) // 4) for text in texts]


PromptCounter = TemplateCounter | BytesCounter


class PromptReader:
    """Counts prompts without blocking the event loop."""

    def __init__(
        self, counter: PromptCounter, source: str = ESTIMATE, large: TurnThreads | None = None
    ) -> None:
        """``large`` has the threads for large prompts; without it they use the common threads."""
        self.exact = not isinstance(counter, BytesCounter)
        """True if the model's tokenizer counts. Calls are never rejected for an estimate."""
        self.source = source
        """Folder or hub id of the tokenizer, or ``estimate``."""
        self.takes_media = bool(getattr(counter, "takes_media", not self.exact))
        """True if the model accepts images or sound, or if that is unknown."""
        self._counter = counter
        self._inline_chars = INLINE_CHARS if self.exact else INLINE_ESTIMATE_CHARS
        self._large = large
        self._threads = TurnThreads(THREADS, "tokenizer")

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
    ) -> Prompt:
        """Return the prompt of a chat request; ``messages`` are those of the original JSON.

        Raises InvalidRequestError, or PromptTooLongError for more than ``max_tokens``.
        """
        size = _chars([messages, tools])
        count = partial(self._counter.chat, messages, tools, max_tokens, options, tenant)
        return await self._count(size, tenant, count)

    async def text(
        self,
        prompt: str | list[int],
        *,
        tenant: str = "",
        max_tokens: int | None = None,
        options: PromptOptions = DEFAULT_PROMPT,
    ) -> Prompt:
        """Return the prompt of a completion request: text, or token ids. Raises as :meth:`chat`."""
        if isinstance(prompt, list):
            return Prompt(np.asarray(prompt, dtype=np.uint32), 0)
        count = partial(self._counter.text, prompt, max_tokens, options, tenant)
        return await self._count(_weight(prompt), tenant, count)

    async def sizes(
        self, texts: Sequence[str], *, tenant: str = "", max_tokens: int | None = None
    ) -> tuple[list[int], bool]:
        """Return the tokens of each text, and whether the numbers are exact.

        A number above ``max_tokens`` may be a lower bound.
        """
        count = partial(self._counter.sizes, texts, max_tokens)
        size = sum(map(_weight, texts)) + CHARS_PER_TEXT * len(texts)
        return await self._count(size, tenant, count), self.exact

    async def _count(self, size: int, tenant: str, count: Callable[[], T]) -> T:
        if size <= self._inline_chars:
            return count()
        threads = self._threads
        if size > LARGE_CHARS and self._large is not None:
            threads = self._large
        return await asyncio.wrap_future(threads.submit_for(tenant, count))

    def close(self) -> None:
        """End the threads, and drop the prompts that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def load_counter(name: str | Path, *, fetch: bool = False, chat: bool = True) -> PromptCounter:
    """Load the counter of a checkpoint folder or hub id. Raises NoTokenizerError.

    With ``chat`` it must have a chat template. Without ``fetch`` only folders and the hub's local cache
    are searched. Takes a second for a large vocabulary: call it in a thread.
    """
    try:
        tokenizer = read_tokenizer(find_folder(str(name), fetch=fetch))
    except NoTokenizerError:
        raise
    except Exception as error:  # of the hub, the files, the tokenizer or the template
        raise NoTokenizerError(" ".join(str(error).split())[:200]) from error
    if chat and tokenizer.template is None:
        raise NoTokenizerError("it has no chat template")
    return TemplateCounter(tokenizer)


def leading_system_messages(messages: list[dict[str, Any]]) -> int:
    """Return the number of leading messages from the system or the developer."""
    leading = 0
    while leading < len(messages) and messages[leading].get("role") in SYSTEM_ROLES:
        leading += 1
    return leading


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as vLLM gives it to templates.

    Its content is a text or a list of texts, arguments of tool calls are objects, and reasoning has
    both of its names.
    """
    plain = {**message, "content": _content(message)}
    if message.get("reasoning") is not None:
        plain["reasoning_content"] = message["reasoning"]
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_with_arguments(call) for call in calls]
    return plain


def _content(message: dict[str, Any]) -> str | list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]


def _one_text(message: dict[str, Any]) -> str:
    content = _content(message)
    return content if isinstance(content, str) else "\n".join(content)


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, which is empty if they are not valid."""
    try:
        arguments = orjson.loads(call["function"]["arguments"])
    except (KeyError, TypeError, ValueError):
        arguments = None
    function = {**call["function"], "arguments": arguments if isinstance(arguments, dict) else {}}
    return {**call, "function": function}


def _weight(text: str) -> int:
    """Return the characters of a text, as many as take as long if it is not ASCII. O(1)."""
    return len(text) if text.isascii() else CHARS_PER_WIDE * len(text)


def _chars(value: Any) -> int:
    """Return the weight of all texts in a JSON value plus one per value, up to LARGE_CHARS."""
    total, rest = 0, [value]
    while rest and total <= LARGE_CHARS:
        part = rest.pop()
        total += _weight(part) if isinstance(part, str) else 1
        if isinstance(part, dict):
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
    return total


def _common_prefix(text: str, other: str) -> int:
    """Return the length of the longest common prefix; O(n log n) in C."""
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
