"""Validate the tools of a call, which are functions of the client's, and calls of them.

A tool of another type is one that a server runs, with addresses to fetch: no worker gets it. The fields
are listed, because whatever else a tool had would reach workers, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.body_part import StrictPart
from fairserve.platform.serving.completions.output_schema import Schema

MAX_TOOLS = 128
MAX_NAME_CHARS = 128

FunctionName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class CacheMark(StrictPart):
    """A mark for caching in Anthropic's format. It has no effect: every prefix is cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ChatFunction(StrictPart):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    cache_control: CacheMark | None = None


class ChatTool(StrictPart):
    """A tool of a chat call. Some clients write ``strict`` beside its function."""

    type: Literal["function"]
    function: ChatFunction
    strict: bool | None = None
    cache_control: CacheMark | None = None


class ChosenFunction(StrictPart):
    """The name of a function."""

    name: FunctionName


class ChatToolChoice(StrictPart):
    """The function that the model must call."""

    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(StrictPart):
    """A function that the model has called, with its arguments as JSON."""

    name: str
    arguments: str


class ChatToolCall(StrictPart):
    """A call of a function in an earlier answer."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None
    function: CalledFunction


def check_tool_types(tools: Any, allowed: str = "function") -> None:
    """Raise InvalidRequestError for the first tool of another type. Any value may be passed."""
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type", allowed) if isinstance(tool, dict) else allowed
        if kind not in (allowed, None):
            field = f"tools[{number}].type"
            raise InvalidRequestError(
                f"{field} is {shown(kind)}: the workers have no built-in tools; allowed: {allowed}",
                param=field,
                code="unsupported_parameter",
            )
