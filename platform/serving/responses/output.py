"""Build the items of a response from a worker's chunks, with an event for every change.

Items follow each other: reasoning, a message, calls of functions. An item ends when the next one begins
or the answer ends, and its ``done`` events have all of it. Text is joined once, at the end of its item.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairserve.platform.base.errors import WorkerFailedError
from fairserve.platform.serving.responses.items import Item, item_id

Event = dict[str, Any]


class ResponseOutput:
    """The output so far of one answer, which is one sample."""

    def __init__(self, record_id: str) -> None:
        self._record_id = record_id
        self.items: list[Item] = []
        """Items that have ended."""
        self.finish_reason: str | None = None
        self._open: _OpenPart | _OpenCall | None = None
        self._message: Item | None = None

    def add(self, chunk: dict[str, Any]) -> Iterator[Event]:
        """Add a chunk and yield its events. Raises WorkerFailedError for a part out of order."""
        for choice in chunk["choices"]:
            yield from self._add(choice)

    def end(self) -> Iterator[Event]:
        """End the open item and yield its events."""
        status = "incomplete" if self.incomplete_reason else "completed"
        yield from self._end_item(status)

    @property
    def incomplete_reason(self) -> str | None:
        """Reason for which the answer is incomplete; None if it is complete."""
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        return reasons.get(self.finish_reason or "")

    def _add(self, choice: dict[str, Any]) -> Iterator[Event]:
        delta = choice["delta"]
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        if text := delta.get("reasoning") or delta.get("reasoning_content"):
            yield from self._text("reasoning_text", text, [])
        if (text := delta.get("content")) or (logprobs and not _calls(delta)):
            yield from self._text("output_text", text or "", logprobs)
        if text := delta.get("refusal"):
            yield from self._text("refusal", text, [])
        for call in _calls(delta):
            yield from self._call(call)
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]

    # --- texts ------------------------------------------------------------------------------------

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        part = self._open
        if not isinstance(part, _OpenPart) or part.kind != kind:
            yield from self._begin_part(kind)
            part = self._open
        assert isinstance(part, _OpenPart)
        found = [_logprob(each) for each in logprobs]
        part.texts.append(text)
        part.logprobs += found
        event = {"type": f"response.{kind}.delta", **part.place, "delta": text}
        yield event | ({"logprobs": found} if kind == "output_text" else {})

    def _begin_part(self, kind: str) -> Iterator[Event]:
        """Open a part, in the open message if it belongs there."""
        name = "reasoning" if kind == "reasoning_text" else "message"
        if self._message is not None and self._message["type"] == name:
            yield from self._end_part()
        else:
            yield from self._end_item("completed")
            item: Item = {"id": self._new_id(name), "type": name}
            if name == "reasoning":
                item["summary"] = []
            else:
                item["role"] = "assistant"
            self._message = item | {"content": [], "status": "in_progress"}
            yield self._item_event("added", self._message)
        message = self._message
        place = {
            "item_id": message["id"],
            "output_index": len(self.items),
            "content_index": len(message["content"]),
        }
        self._open = part = _OpenPart(kind, place)
        yield {"type": "response.content_part.added", **place, "part": part.content()}

    def _end_part(self) -> Iterator[Event]:
        part, self._open = self._open, None
        if not isinstance(part, _OpenPart):
            return
        assert self._message is not None, "a part is in an item"
        content = part.content()
        self._message["content"].append(content)
        done = {"type": f"response.{part.kind}.done", **part.place, part.field: content[part.field]}
        yield done | ({"logprobs": part.logprobs} if part.kind == "output_text" else {})
        yield {"type": "response.content_part.done", **part.place, "part": content}

    # --- calls of functions -----------------------------------------------------------------------

    def _call(self, part: dict[str, Any]) -> Iterator[Event]:
        """Add a part of a call: its id and name arrive with the first, its arguments in pieces."""
        function, index = part["function"], part["index"]
        if "name" in function:
            yield from self._end_item("completed")
            identity = self._new_id("function_call")
            call_id = part.get("id") or identity.replace("fc_", "call_", 1)
            self._open = _OpenCall(index, identity, call_id, function["name"])
            yield self._item_event("added", self._open.item("in_progress"))
        if arguments := function["arguments"]:
            call = self._open
            if not isinstance(call, _OpenCall) or call.index != index:
                raise WorkerFailedError("the worker mixed the parts of several function calls")
            call.arguments.append(arguments)
            yield {
                "type": "response.function_call_arguments.delta",
                "item_id": call.id,
                "output_index": len(self.items),
                "delta": arguments,
            }

    # --- items ------------------------------------------------------------------------------------

    def _end_item(self, status: str) -> Iterator[Event]:
        if isinstance(self._open, _OpenCall):
            item = self._open.item(status)
            self._open = None
            yield {
                "type": "response.function_call_arguments.done",
                "item_id": item["id"],
                "output_index": len(self.items),
                "name": item["name"],
                "arguments": item["arguments"],
            }
        elif self._message is not None:
            yield from self._end_part()
            item, self._message = self._message | {"status": status}, None
        else:
            return
        yield self._item_event("done", item)
        self.items.append(item)

    def _item_event(self, change: str, item: Item) -> Event:
        kind = f"response.output_item.{change}"
        return {"type": kind, "output_index": len(self.items), "item": dict(item)}

    def _new_id(self, kind: str) -> str:
        return item_id(kind, self._record_id, len(self.items))


class _OpenPart:
    """An open part of a message, or of reasoning."""

    def __init__(self, kind: str, place: dict[str, Any]) -> None:
        self.kind, self.place = kind, place
        self.field = "refusal" if kind == "refusal" else "text"
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []

    def content(self) -> dict[str, Any]:
        """Return the part with its text so far."""
        part: dict[str, Any] = {"type": self.kind, self.field: "".join(self.texts)}
        if self.kind == "output_text":
            part |= {"annotations": [], "logprobs": self.logprobs}
        return part


class _OpenCall:
    """An open call of a function."""

    def __init__(self, index: int, identity: str, call_id: str, name: str) -> None:
        self.index, self.id, self.call_id, self.name = index, identity, call_id, name
        self.arguments: list[str] = []

    def item(self, status: str) -> Item:
        """Return the call with its arguments so far."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.arguments),
            "status": status,
        }


def _calls(delta: dict[str, Any]) -> list[dict[str, Any]]:
    return delta.get("tool_calls") or []


def _logprob(token: dict[str, Any]) -> dict[str, Any]:
    """Return a token's log probability with all fields of a response."""
    top = token.get("top_logprobs") or []
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "bytes": token.get("bytes") or [],
        "top_logprobs": [
            {"token": each["token"], "logprob": each["logprob"], "bytes": each.get("bytes") or []}
            for each in top
        ],
    }
