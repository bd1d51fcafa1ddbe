"""Messages of a GenAI span as texts, which are counted, compared and searched.

A message is its role and its parts: the ``content``, the ``parts`` of newer conventions, and tool
calls as JSON with sorted keys, so that an answer has the same text in its span and in a later
prompt. A prompt's tokens are estimated at four characters of its parts per token.

Weakness: role markers, chat templates, tool definitions and images are not counted. Four characters
suit English prose; code has fewer per token, most other scripts far fewer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairserve.benchmarks.traces.generate.block_ids import BlockIds
from fairserve.benchmarks.traces.otel_spans import Span

CHARACTERS_PER_TOKEN = 4
INPUT = "gen_ai.input.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
OUTPUT_TEXT = "gen_ai.output.text"
OUTPUT_MESSAGES = "gen_ai.output.messages"


@dataclass(frozen=True, slots=True)
class OtelMessage:
    """A message: role and parts."""

    role: str
    parts: tuple[str, ...]

    @property
    def characters(self) -> int:
        """Return the number of characters of all parts."""
        return sum(map(len, self.parts))


Messages = tuple[OtelMessage, ...]


def read_prompt(span: Span) -> Messages | None:
    """Return the messages of a span's prompt, system messages first; None if it records none.

    Raises `TraceError` if the messages are not JSON, or not a list of messages.
    """
    prompt = _read(span, INPUT)
    given = span.attributes.get(INSTRUCTIONS)
    if given is None:
        return prompt
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = [given]  # instructions may be plain text
    return (OtelMessage("system", tuple(_parts(given))), *(prompt or ()))


def read_output(span: Span) -> Messages | None:
    """Return the messages of a span's answer; None if it records none. Errors as in `read_prompt`."""
    text = span.attributes.get(OUTPUT_TEXT)
    if text is None:
        return _read(span, OUTPUT_MESSAGES)
    if not isinstance(text, str):
        raise span.error(f"{OUTPUT_TEXT} must be a text")
    return (OtelMessage("assistant", (text,)),)


def estimated_tokens(messages: Messages, role: str | None = None) -> int:
    """Return the tokens of all messages, or of those of one role, rounded up."""
    characters = sum(m.characters for m in messages if role is None or m.role == role)
    return -(-characters // CHARACTERS_PER_TOKEN)


def block_runs(
    ids: BlockIds, messages: Messages, block_characters: int, most: int
) -> tuple[tuple[int, int], ...]:
    """Return the chained ids of the first ``most`` blocks of a given number of characters, as runs.

    A block is identified by its characters and the positions in it where each role begins.
    """
    text = "".join("".join(message.parts) for message in messages)
    turns: list[tuple[int, str]] = []
    offset = 0
    for message in messages:
        turns.append((offset, message.role))
        offset += message.characters
    prefix = ids.empty
    following = 0
    for block in range(min(len(text) // block_characters, most)):
        start, end = block * block_characters, (block + 1) * block_characters
        first = following
        while following < len(turns) and turns[following][0] < end:
            following += 1
        spoken = tuple((at - start, role) for at, role in turns[first:following])
        prefix = ids.extend(prefix, (text[start:end], spoken), ids.block_tokens)
    return prefix.blocks


def _read(span: Span, name: str) -> Messages | None:
    value = span.attributes.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            # Never the text itself: an error message may end up in a log.
            what = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
            raise span.error(f"{name} is not JSON ({what}); {_ALLOWED}") from None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise span.error(f"{name}: {_ALLOWED}")
    messages = []
    for item in value:
        role = item.get("role")
        if not isinstance(role, str) or not role:
            raise span.error(f"{name}: a message has no role; {_ALLOWED}")
        role = "system" if role == "developer" else role
        shown = (item.get("content"), item.get("parts"), item.get("tool_calls"))
        messages.append(OtelMessage(role, tuple(part for value in shown for part in _parts(value))))
    return tuple(messages)


_ALLOWED = 'a list of messages {"role", "content" or "parts"} is allowed, as JSON text or as it is'


def _parts(value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict) and isinstance(value.get("content"), str):
        yield value["content"]
    elif isinstance(value, dict) and isinstance(value.get("text"), str):
        yield value["text"]
    else:
        yield json.dumps(value, sort_keys=True, separators=(",", ":"))
