"""Assign the parts of streamed tool calls to their calls.

In OpenAI's format ``index`` names the call of a part, and the first part has its id and name. Some
servers omit the index, send null, or give every call the index 0. Parts are then assigned by their id,
their name or their order. What leaves here has an index for every part, counted from 0 in the order in
which calls begin; id and name come once, with a call's first part. A part whose call cannot be known
is a malformed answer: arguments never reach another call.
"""

from __future__ import annotations

from typing import Any

import orjson

from fairserve.engine.wire.base import MalformedAnswerError

Part = dict[str, Any]


class ToolCallParts:
    """The tool calls of one sample. O(1) per part; memory: the arguments."""

    def __init__(self) -> None:
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}
        """The last call of each index of the worker's."""
        self._by_id: dict[str, _ToolCall] = {}
        self._together: list[_ToolCall] = []
        """Calls that began in the last list in which calls began."""

    def read(self, parts: list[Part]) -> list[Part]:
        """Return the parts of one chunk with their indexes; a call without a name yet is held back.

        The types of the fields are checked. Raises MalformedAnswerError.
        """
        written, begun = [], []
        unnamed = [part for part in parts if _is_unnamed(part)]
        for place, part in enumerate(parts):
            call = self._find(part, place, len(parts), len(unnamed))
            if call is None:
                if _is_empty(part):
                    continue
                call = _ToolCall(len(self._calls))
                self._calls.append(call)
                begun.append(call)
            self._take(part, call)
            if call.name:
                written.append(call.write(part))
        self._together = begun or self._together
        return written

    def end(self) -> None:
        """Raise MalformedAnswerError for a call that never got a name."""
        if not all(call.name for call in self._calls):
            raise MalformedAnswerError("it sent a tool call without a name")

    def _find(self, part: Part, place: int, parts: int, unnamed: int) -> _ToolCall | None:
        """Return the call of a part; None: it begins a new one."""
        index, call_id, name = part.get("index"), _id(part), _text(part, "name")
        if index is not None:
            call = self._by_index.get(index)
            if call is None and call_id and not name:
                call = self._by_id.get(call_id)
            return None if call is None or call.is_followed_by(part) else call
        if call_id:
            call = self._by_id.get(call_id)
            if call is not None and name and call.name not in ("", name):
                raise MalformedAnswerError(f"it sent two names for the tool call {call_id[:40]!r}")
            return call
        if name:
            last = self._calls[-1] if self._calls else None
            return last if last is not None and not last.name else None
        if _is_empty(part):
            return None
        return self._open(place, parts, unnamed)

    def _open(self, place: int, parts: int, unnamed: int) -> _ToolCall:
        """Return the call of arguments without index, id and name."""
        if unnamed > 1:
            if unnamed == parts == len(self._together):
                return self._together[place]
        elif self._calls and all(call.arguments for call in self._together[:-1]):
            return self._calls[-1]
        raise MalformedAnswerError("it sent arguments whose tool call is unknown")

    def _take(self, part: Part, call: _ToolCall) -> None:
        call.name = call.name or _text(part, "name")
        if arguments := _text(part, "arguments"):
            call.arguments.append(arguments)
        if (index := part.get("index")) is not None:
            self._by_index[index] = call
        if call_id := _id(part):
            call.id = call.id or call_id
            self._by_id[call_id] = call


class _ToolCall:
    """One tool call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = self.name = ""
        self.arguments: list[str] = []
        self._written = False

    def is_followed_by(self, part: Part) -> bool:
        """Return whether a part with this call's index begins another call.

        Raises MalformedAnswerError for a second name, or second arguments, of this one.
        """
        call_id, name = _id(part), _text(part, "name")
        if not name or not self.name:
            return False
        if call_id and self.id and call_id != self.id:
            return True
        same_id = bool(call_id) and call_id == self.id
        if name != self.name:
            if same_id or not self.arguments:
                raise MalformedAnswerError("it sent two names for one tool call")
            return True
        # Some servers repeat the name with every part.
        if not _text(part, "arguments").startswith("{") or not self._is_whole():
            return False
        if same_id:
            raise MalformedAnswerError("it sent the arguments of one tool call twice")
        return True

    def write(self, part: Part) -> Part:
        """Add a part of a call with a name, and return it as it is sent on."""
        arguments = _text(part, "arguments")
        function = part.get("function") or {}
        rest = {name: value for name, value in part.items() if name not in _OWN_FIELDS}
        if self._written:
            return rest | {"index": self.number, "function": {"arguments": arguments}}
        self._written = True
        function = function | {"name": self.name, "arguments": "".join(self.arguments)}
        begun = {"index": self.number, "type": "function", "function": function}
        return rest | ({"id": self.id} if self.id else {}) | begun

    def _is_whole(self) -> bool:
        """Return whether the arguments so far are a JSON object."""
        if not self.arguments or not self.arguments[-1].endswith("}"):
            return False
        try:
            return isinstance(orjson.loads("".join(self.arguments)), dict)
        except orjson.JSONDecodeError:
            return False


_OWN_FIELDS = frozenset({"index", "id", "type", "function"})


def _id(part: Part) -> str:
    return part.get("id") or ""


def _text(part: Part, name: str) -> str:
    return (part.get("function") or {}).get(name) or ""


def _is_unnamed(part: Part) -> bool:
    """Return whether a part has arguments only."""
    named = part.get("index") is not None or _id(part) or _text(part, "name")
    return not named and not _is_empty(part)


def _is_empty(part: Part) -> bool:
    return not (_id(part) or _text(part, "name") or _text(part, "arguments"))
