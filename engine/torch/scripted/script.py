"""The script of the demo model: what it answers to a request.

With tools, and none of their results since the user's last message, it calls the tool whose name and
description share most words with that message. Then, and without tools, it answers with a text, or with
an object of the JSON schema that the request has. A request that demands a call gets one each time: of
the tool that has been called least. The answer to a request is always the same.

Weakness: one call an answer, also where ``parallel_tool_calls`` allows several.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.engine.torch.builtin_model import CALL_ID
from fairserve.engine.torch.openai.request import GenerationRequest
from fairserve.engine.torch.output_format import OutputFormat
from fairserve.engine.torch.scripted.schema_example import NoExampleError, SchemaExample

Message = Mapping[str, Any]

_QUESTION_BYTES = 110
"""Bytes of a request that an answer repeats; a byte is a token."""
_RESULT_BYTES = 200
"""Bytes of all results of tools that an answer repeats."""
_ARGUMENT_WORDS = 4
_WORD = re.compile(r"[^\W_]+")
_SMALL_WORDS = frozenset(
    _WORD.findall(
        "a about an and any are at be by can could do does find for from get give go have how i in into"
        " is it its let list make me my need now of on or our please show that the their them then"
        " there this to today use using want was we were what when where which who will with would"
        " you your"
    )
)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """An answer: a text, or the call of a tool."""

    text: str | None
    """The text, or the arguments of the call as JSON; None: a grammar decides."""
    called: str = ""
    """Name of the called tool; empty: none."""
    output_format: OutputFormat | None = None
    """Form of the text or of the arguments; None: none is needed."""

    @property
    def head(self) -> list[int]:
        """Return the tokens before those of the text. A byte is a token."""
        return [CALL_ID, *self.called.encode()] if self.called else []

    @property
    def body(self) -> list[int] | None:
        """Return the tokens of the text; None if there is none."""
        return None if self.text is None else list(self.text.encode(errors="replace"))


def scripted_answer(wanted: GenerationRequest) -> ScriptedAnswer:
    """Return the answer to a request."""
    if wanted.kind == "completion":
        prompt = wanted.prompt
        if isinstance(prompt, list):
            prompt = bytes(token for token in prompt if token < 256).decode(errors="replace")
        return _text(prompt, [], wanted.output_format)
    question, turn = _last_turn(wanted.messages)
    calls = [call["function"] for each in turn for call in each.get("tool_calls", ())]
    results = [each for each in turn if each["role"] == "tool"]
    functions = wanted.tools.callable
    if functions and (wanted.tools.choice == "required" or not results):
        return _call(functions, question, Counter(call["name"] for call in calls))
    return _text(question, _named_results(turn, results), wanted.output_format)


def _last_turn(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the user's last message, and the messages after it."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user":
            return messages[at]["content"], messages[at + 1 :]
    return messages[-1]["content"], messages


def _named_results(turn: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[str]:
    """Return the tools' results with the names of the tools."""
    called = [call for each in turn for call in each.get("tool_calls", ())]
    names = {call.get("id"): call["function"]["name"] for call in called}
    return [
        f"{names.get(each.get('tool_call_id')) or each.get('name', 'The tool')} answered:"
        f" {each['content']}"
        for each in results
    ]


def _call(
    functions: list[Mapping[str, Any]], question: str, calls: Mapping[str, int]
) -> ScriptedAnswer:
    """Return the call of the tool that has been called least and fits the question best."""
    asked = set(_stems(question))

    def rank(function: Mapping[str, Any]) -> tuple[int, int]:
        about = _stems(f"{function['name']} {function.get('description') or ''}")
        return calls.get(function["name"], 0), -len(asked.intersection(about))

    chosen = min(functions, key=rank)
    schema = chosen.get("parameters")
    schema = {"type": "object"} if schema is None or not schema else schema
    try:
        value = SchemaExample(schema, _subject(question), question).value()
        if isinstance(value, dict):
            return ScriptedAnswer(json.dumps(value, ensure_ascii=False), chosen["name"])
    except NoExampleError:
        pass
    return ScriptedAnswer(None, chosen["name"], OutputFormat("tools", "json", schema))


def _text(question: str, results: list[str], wanted: OutputFormat | None) -> ScriptedAnswer:
    if results:
        text = _shortened("; ".join(results), _RESULT_BYTES)
    else:
        text = (
            f'You wrote: "{_shortened(question, _QUESTION_BYTES)}" I am the demo model of FairServe:'
            " I follow a script, and call tools."
        )
    if wanted is None:
        return ScriptedAnswer(text)
    if wanted.kind != "json" or isinstance(wanted.definition, str):
        return ScriptedAnswer(None, output_format=wanted)
    if wanted.definition == {"type": "object"}:
        value = {"answer": text}
    else:
        words = text if results else _subject(question)
        try:
            value = SchemaExample(wanted.definition, words, question).value()
        except NoExampleError:
            return ScriptedAnswer(None, output_format=wanted)
    return ScriptedAnswer(json.dumps(value, ensure_ascii=False), output_format=wanted)


def _subject(text: str) -> str:
    """Return what a text is about: its names, or its last words that are not small."""
    words = _WORD.findall(text[-2_000:])
    names = [word for word in words[1:] if word[0].isupper() and word.lower() not in _SMALL_WORDS]
    large = [word for word in words if word.lower() not in _SMALL_WORDS and not word.isdigit()]
    return " ".join((names or large or words)[-_ARGUMENT_WORDS:])


def _stems(text: str) -> Iterable[str]:
    """Return the beginnings of the words of a text, without small words."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text[:4_000])
    words = (word.lower() for word in _WORD.findall(split.replace("_", " ")))
    return (word[:5] for word in words if word not in _SMALL_WORDS)


def _shortened(text: str, most_bytes: int) -> str:
    """Return a text on one line, cut at a word."""
    line = " ".join(text.split())
    encoded = line.encode(errors="replace")
    if len(encoded) <= most_bytes:
        return line
    kept = encoded[:most_bytes].decode(errors="ignore")
    return f"{kept.rpartition(' ')[0] or kept} ..."
