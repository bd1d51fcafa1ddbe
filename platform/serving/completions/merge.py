"""The whole answer of a call: merged from a worker's chunks, or sent as one object.

The shape of both was checked where they arrived (:mod:`fairserve.engine.wire.answer_shape`).
"""

from __future__ import annotations

from typing import Any

from fairserve.engine.wire.base import WorkerChunk

OBJECTS = {"chat.completion.chunk": "chat.completion", "text_completion": "text_completion"}


class Merger:
    """Collects the chunks of all samples. Text is joined once, at the end."""

    keeps_logprobs = True
    """False if only the messages are wanted: log probabilities take 8 KB a token."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, part: WorkerChunk) -> None:
        """Add a chunk."""
        if (form := part.form) is not None and form.index in self._choices:
            self._choices[form.index].add_text(form.field, part.text)
            return
        chunk = part.data
        for name, value in chunk.items():
            if name not in ("choices", "usage"):
                self._head.setdefault(name, value)
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            if not self.keeps_logprobs:
                choice = choice | {"logprobs": None}
            self._choices.setdefault(index, _Choice()).add(choice)

    def messages(self) -> list[dict[str, Any]]:
        """Return the answers of a chat call as messages, one a sample."""
        return [
            self._choices[index].whole(index, chat=True)["message"]
            for index in sorted(self._choices)
        ]

    @property
    def requested_tools(self) -> bool:
        """True if any sample requests tools."""
        return any(choice.requested_tools for choice in self._choices.values())

    def answer(self, answer_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole answer in OpenAI's shape."""
        kind = self._head.get("object", "")
        chat = kind != "text_completion"
        answer = {**self._head, "id": answer_id, "object": OBJECTS.get(kind, kind), "model": model}
        answer["choices"] = [
            self._choices[index].whole(index, chat=chat) for index in sorted(self._choices)
        ]
        answer["usage"] = usage
        return answer


class WholeCompletion(Merger):
    """The answer of a call that its worker did not stream: one object."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, Any] = {}

    def add(self, part: WorkerChunk) -> None:
        """Take the object."""
        self._data = part.data

    def messages(self) -> list[dict[str, Any]]:
        """Return the answers of a chat call as messages, one a sample."""
        return [
            choice["message"] for choice in self._data.get("choices", ()) if "message" in choice
        ]

    @property
    def requested_tools(self) -> bool:
        """True if any sample requests tools."""
        return any(message.get("tool_calls") for message in self.messages())

    def answer(self, answer_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole answer in OpenAI's shape, with the worker's other fields."""
        return {**self._data, "id": answer_id, "model": model, "usage": usage}


class _Choice:
    """One sample."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._texts: dict[str, list[str]] = {}
        """Text fields of the deltas: content, refusal, reasoning_content ..."""
        self._values: dict[str, Any] = {}
        self._tool_calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        """Pieces of the arguments of each tool call."""
        self._logprobs: dict[str, Any] | None = None
        self._rest: dict[str, Any] = {}

    @property
    def requested_tools(self) -> bool:
        return bool(self._tool_calls)

    def add_text(self, name: str, text: str) -> None:
        """Add to the text of a completion, or to one of a message's."""
        if name == "text":
            self._text.append(text)
        else:
            self._texts.setdefault(name, []).append(text)

    def add(self, choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name == "text" and isinstance(value, str):
                self._text.append(value)
            elif name == "delta" and isinstance(value, dict):
                self._add_delta(value)
            elif name == "logprobs" and isinstance(value, dict):
                if self._logprobs is None:
                    self._logprobs = {}
                _extend(self._logprobs, value)
            elif name not in ("index", "delta", "text", "logprobs") and value is not None:
                self._rest[name] = value

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    self._add_tool_call(call)
            elif name == "role":
                self._values[name] = value
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif value is not None:
                self._values[name] = value

    def _add_tool_call(self, part: dict[str, Any]) -> None:
        """Add a part of a tool call: name and id arrive once, the arguments in pieces."""
        call = self._tool_calls.setdefault(part["index"], {"function": {}})
        for name, value in part.items():
            if name == "function":
                self._arguments.setdefault(part["index"], []).append(value["arguments"])
                call["function"] |= value
            elif name != "index" and value is not None:
                call[name] = value

    def _whole_call(self, index: int) -> dict[str, Any]:
        call, arguments = self._tool_calls[index], "".join(self._arguments.get(index, ()))
        return call | {"function": call["function"] | {"arguments": arguments}}

    def whole(self, index: int, *, chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if chat:
            message = {"role": "assistant", **self._values}
            texts = {name: "".join(parts) for name, parts in self._texts.items()}
            content = texts.pop("content", "")
            message["content"] = content if content or not self._tool_calls else None
            message.update(texts)
            if self._tool_calls:
                message["tool_calls"] = [self._whole_call(i) for i in sorted(self._tool_calls)]
            choice["message"] = message
        else:
            choice["text"] = "".join(self._text)
        return {**choice, "logprobs": self._logprobs, "finish_reason": None, **self._rest}


def _extend(merged: dict[str, Any], more: dict[str, Any]) -> None:
    """Append the log probabilities of a chunk, lists by token in both dialects, to ``merged``."""
    for name, value in more.items():
        before = merged.get(name)
        if isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif isinstance(value, list):
            merged[name] = list(value)
        elif value is not None or name not in merged:
            merged[name] = value
