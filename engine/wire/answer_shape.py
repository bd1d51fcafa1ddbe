"""Check the shape of a worker's answer, at the one place where it arrives.

Whatever reads a chunk or a whole answer later relies on this: ``choices`` is a list of objects with an
index below the number of samples, texts are texts, tool calls have a function and an index, and a
``finish_reason`` is one of a success. Anything else is the worker's failure. Fields of the worker that
nothing here reads are passed on unchanged.

Weakness: of an embedding, only the list or text is checked, not each of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairserve.engine.wire.base import MalformedAnswerError
from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK, WorkerPath
from fairserve.engine.wire.tool_call_parts import ToolCallParts

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
"""Values of ``finish_reason`` that end an answer. Others (``abort``, ``error``) interrupt it."""
_OTHER_NAMES = {"eos_token": "stop", "stop_sequence": "stop"}
"""Names of text-generation-inference for the same."""
LEAST_LOGPROB = -9999.0
"""OpenAI's log probability of a token that is very unlikely."""
_CHAT = "/v1/chat/completions"
_OBJECTS = {
    (_CHAT, True): "chat.completion.chunk",
    (_CHAT, False): "chat.completion",
    ("/v1/completions", True): "text_completion",
    ("/v1/completions", False): "text_completion",
}
_OUTPUTS = frozenset({"delta", "message", "text"})
"""Fields of a choice that hold its output, by protocol."""
_TEXTS = frozenset({"content", "refusal", "reasoning", "reasoning_content", "role"})


class AnswerShape:
    """The checks of one answer. O(1) per choice, tool call and log probability."""

    def __init__(self, path: WorkerPath, samples: int) -> None:
        """``samples`` is the number of choices, inputs or documents of the call."""
        self._path = path
        self._samples = samples
        self._tools: dict[int, ToolCallParts] = {}
        self._finished: dict[int, bool] = {}
        """Samples that have begun, and whether each has ended."""

    @property
    def is_complete(self) -> bool:
        """True if every sample that has begun has ended, and there is one."""
        return bool(self._finished) and all(self._finished.values())

    def check_chunk(self, chunk: dict[str, Any]) -> None:
        """Check a chunk of a stream and set its defaults in place. Raises MalformedAnswerError."""
        chunk["object"] = _OBJECTS[self._path, True]
        for choice in self._choices(chunk):
            index = self._index(choice, 0)
            self._finished.setdefault(index, False)
            if self._path == _CHAT:
                self._check_delta(choice, index)
            else:
                _check_text(choice)
            self._leave_out_others(choice, "delta")
            if choice.get("logprobs") is not None:
                self._check_logprobs(choice["logprobs"])
            if choice.get("finish_reason") == "":  # some servers write it for null
                choice["finish_reason"] = None
            if choice.get("finish_reason") is not None:
                _check_reason(choice)
                self._finished[index] = True
                if index in self._tools:
                    self._tools[index].end()

    def check_whole(self, answer: dict[str, Any]) -> None:
        """Check a whole answer and set its defaults in place. Raises MalformedAnswerError."""
        if self._path == EMBEDDINGS:
            self._check_entries(answer, "data", _check_embedding)
        elif self._path == RERANK:
            self._check_entries(answer, "results", _check_result)
        else:
            self._check_completion(answer)

    def _check_completion(self, answer: dict[str, Any]) -> None:
        answer["object"] = _OBJECTS[self._path, False]
        for place, choice in enumerate(self._choices(answer)):
            index = self._index(choice, place)
            if index in self._finished:
                raise MalformedAnswerError(f"it sent two choices with index {index}")
            _check_reason(choice)
            if choice.get("logprobs") is not None:
                self._check_logprobs(choice["logprobs"])
            self._finished[index] = True
            if self._path == _CHAT:
                _check_message(choice)
            elif not isinstance(choice.get("text"), str):
                raise _wrong("text", choice.get("text"), "text")
            self._leave_out_others(choice, "message")
        if not self._finished:
            raise MalformedAnswerError("it sent an answer without choices")

    def _check_entries(
        self, answer: dict[str, Any], field: str, check: Callable[[dict[str, Any]], None]
    ) -> None:
        seen = set()
        for place, entry in enumerate(_require_objects(answer.get(field), field)):
            index = entry.get("index")
            if index is None:
                index = entry["index"] = place
            if type(index) is not int or not 0 <= index < self._samples or index in seen:
                raise MalformedAnswerError(
                    f"it sent {field} with a wrong or repeated index; must be 0 to"
                    f" {self._samples - 1}"
                )
            seen.add(index)
            check(entry)

    # --- choices ----------------------------------------------------------------------------------

    def _choices(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        choices = answer.get("choices")
        if choices is None:
            choices = answer["choices"] = []
        return _require_objects(choices, "choices")

    def _index(self, choice: dict[str, Any], default: int) -> int:
        index = choice.get("index")
        if index is None:
            index = choice["index"] = default
        if type(index) is not int or not 0 <= index < self._samples:
            shown = index if type(index) is int else type(index).__name__
            raise MalformedAnswerError(
                f"it sent a choice with index {shown}; must be 0 to {self._samples - 1}"
            )
        return index

    def _leave_out_others(self, choice: dict[str, Any], chat_output: str) -> None:
        """Leave out the outputs of other protocols, which nothing has checked."""
        own = chat_output if self._path == _CHAT else "text"
        for name in _OUTPUTS - {own}:
            choice.pop(name, None)

    def _check_logprobs(self, logprobs: Any) -> None:
        if not isinstance(logprobs, dict):
            raise _wrong("logprobs", logprobs, "an object or null")
        if self._path == _CHAT:
            for name in ("content", "refusal"):
                for token in _require_objects(logprobs.get(name) or [], f"logprobs.{name}"):
                    _check_token(token)
                    for each in _require_objects(token.get("top_logprobs") or [], "top_logprobs"):
                        _check_token(each)

    def _check_delta(self, choice: dict[str, Any], index: int) -> None:
        delta = choice.get("delta")
        if delta is None:
            if choice.get("message") is not None or choice.get("text"):
                raise MalformedAnswerError("it sent a choice of a chat stream without delta")
            delta = choice["delta"] = {}
        if not isinstance(delta, dict):
            raise _wrong("delta", delta, "an object")
        _check_texts(delta)
        if (parts := delta.get("tool_calls")) is None:
            return
        for part in _require_objects(parts, "tool_calls"):
            _check_tool_call(part)
            number = part.get("index")
            if number is not None and (type(number) is not int or number < 0):
                raise _wrong("tool_calls.index", number, "an integer from 0 or null")
        if parts:
            tools = self._tools.setdefault(index, ToolCallParts())
            delta["tool_calls"] = tools.read(parts)


def as_chunk(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a checked whole answer as the only chunk of a stream."""
    choices = []
    for choice in answer["choices"]:
        delta = choice.pop("message", None)
        if delta is not None:
            calls = enumerate(delta.get("tool_calls") or ())
            delta |= {"tool_calls": [{**call, "index": number} for number, call in calls]}
            choice["delta"] = delta
        choices.append(choice)
    kind = "chat.completion.chunk" if answer["object"] == "chat.completion" else answer["object"]
    return answer | {"object": kind, "choices": choices}


def _check_text(choice: dict[str, Any]) -> None:
    _require_text(choice, "text")
    if choice.get("text") is None and (choice.get("delta") or choice.get("message")):
        raise MalformedAnswerError("it sent a choice of a text completion without text")


def _check_message(choice: dict[str, Any]) -> None:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _wrong("message", message, "an object")
    _check_texts(message)
    calls = message.get("tool_calls")
    for call in _require_objects([] if calls is None else calls, "tool_calls"):
        _check_tool_call(call)
        function = call.get("function")
        if function is None or not function.get("name"):
            raise MalformedAnswerError("it sent a tool call without a name")
        if function.get("arguments") is None:
            function["arguments"] = ""


def _check_reason(choice: dict[str, Any]) -> None:
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason in _OTHER_NAMES:
        reason = choice["finish_reason"] = _OTHER_NAMES[reason]
    if not isinstance(reason, str) or reason not in FINISH_REASONS:
        shown = repr(reason[:40]) if isinstance(reason, str) else type(reason).__name__
        raise MalformedAnswerError(f"it ended the answer with finish_reason {shown}")


def _check_texts(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if type(value) is not str and value is not None and name in _TEXTS:
            raise _wrong(name, value, "text or null")
    call = fields.get("function_call")  # nothing requests it; some servers write an empty one
    if call and not (isinstance(call, dict) and not any(call.values())):
        raise MalformedAnswerError("it sent function_call; must be tool_calls")


def _check_tool_call(call: dict[str, Any]) -> None:
    _require_text(call, "id")
    _require_text(call, "type")
    function = call.get("function")
    if function is None:
        return
    if not isinstance(function, dict):
        raise _wrong("tool_calls.function", function, "an object")
    _require_text(function, "name")
    _require_text(function, "arguments")


def _check_token(token: dict[str, Any]) -> None:
    if not isinstance(token.get("token"), str):
        raise _wrong("logprobs.token", token.get("token"), "text")
    value = token.get("logprob")
    if value is None:  # minus infinity, which JSON lacks
        token["logprob"] = LEAST_LOGPROB
    elif type(value) not in (int, float):
        raise _wrong("logprobs.logprob", value, "a number or null")
    found = token.get("bytes")
    if found is not None and not (isinstance(found, list) and all(type(b) is int for b in found)):
        raise _wrong("logprobs.bytes", found, "a list of integers or null")


# --- embeddings and ranks -----------------------------------------------------------------------------


def _check_embedding(entry: dict[str, Any]) -> None:
    vector = entry.get("embedding")
    if not isinstance(vector, list | str) or not vector:
        raise _wrong("data.embedding", vector, "a list or text with at least one number")


def _check_result(entry: dict[str, Any]) -> None:
    score = entry.get("relevance_score")
    if type(score) not in (int, float):
        raise _wrong("results.relevance_score", score, "a number")


# --- values -------------------------------------------------------------------------------------------


def _require_objects(values: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        raise _wrong(name, values, "a list")
    for each in values:
        if not isinstance(each, dict):
            raise _wrong(f"{name}[]", each, "an object")
    return values


def _require_text(fields: dict[str, Any], name: str) -> None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "text or null")


def _wrong(name: str, value: Any, allowed: str) -> MalformedAnswerError:
    kind = "null" if value is None else type(value).__name__
    return MalformedAnswerError(f"it sent {name} as {kind}; must be {allowed}")
