"""Tools of a chat, for a model whose answers can call them.

Definitions are kept as the client wrote them, because the chat template renders them in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from fairserve.engine.torch.openai.fields import FieldsPart, RequestError

MAX_TOOLS = 128


class _Function(FieldsPart):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None


class _Tool(FieldsPart):
    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    function: _Function


class _NamedFunction(FieldsPart):
    name: str = Field(min_length=1)


class NamedToolChoice(FieldsPart):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: _NamedFunction


def _checked(tool: Any) -> Any:
    _Tool.model_validate(tool)
    return tool


Tools = Annotated[
    list[Annotated[dict[str, Any], BeforeValidator(_checked)]],
    Field(
        max_length=MAX_TOOLS, fail_fast=True, description=f"a list of up to {MAX_TOOLS} functions"
    ),
]
AnyToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedToolChoice | None,
    Field(description="none, auto, required, or a function of tools by its name"),
]


@dataclass(frozen=True, slots=True)
class RequestedTools:
    """The tools of a request, and whether its answer calls one."""

    definitions: list[dict[str, Any]]
    choice: Literal["none", "auto", "required"] = "none"
    named: str = ""
    """Name of the only tool that the answer may call; empty: any."""

    @property
    def callable(self) -> list[Mapping[str, Any]]:
        """Return the functions that the answer may call."""
        if self.choice == "none":
            return []
        functions = [each["function"] for each in self.definitions]
        return [each for each in functions if self.named in ("", each["name"])]


NO_TOOLS = RequestedTools([])


def requested_tools(
    definitions: list[dict[str, Any]], choice: str | NamedToolChoice | None
) -> RequestedTools:
    """Return the tools of a request. Raises RequestError for a choice that they do not have."""
    if isinstance(choice, NamedToolChoice):
        found = RequestedTools(definitions, "required", choice.function.name)
    elif choice == "none" or (not definitions and choice != "required"):
        found = RequestedTools(definitions)
    else:
        found = RequestedTools(definitions, "required" if choice == "required" else "auto")
    if found.choice == "required" and not found.callable:
        raise RequestError("tool_choice names a tool that is not in tools", "tool_choice")
    return found
