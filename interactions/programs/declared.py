"""A declared program as JSON has it: its fields, their types and ranges, defined once.

:func:`fairserve.interactions.programs.program.parse_program` reads these models, the API's schema is
theirs, and the guide (``docs/guide/programs.md``) describes their fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from fairserve.interactions.programs.condition import PathText, WhenIn
from fairserve.interactions.programs.program_fields import (
    Declared,
    NodeReference,
    Within,
    checked_integer,
    invalid,
    kind,
    printable,
    shown,
)
from fairserve.interactions.programs.template import NODE_ID, RESERVED_IDS

NOT_SAMPLING = (
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "n",
    "user",
    "metadata",
)
"""Fields of a request that the node or the platform sets."""

DEFAULT_RETRIES = 1
MAX_RETRIES = 5
MAX_EXPECTED_TOKENS = 1_000_000
MAX_AGENT_CHARS = 128
MAX_MODEL_CHARS = 256
MAP_WIDTH = 256
"""Instances of one mapped node, unless the limits of the program name another number."""

ModelText = Annotated[str, printable(MAX_MODEL_CHARS)]


def _check_id(value: object) -> object:
    if value is None:
        raise invalid("is missing")
    if not isinstance(value, str):
        raise invalid(f"must be a string, not {kind(value)}")
    if not NODE_ID.fullmatch(value):
        raise invalid(f"is {shown(value)}; allowed: 1 to 64 letters, digits, '_' and '-'")
    if value in RESERVED_IDS:
        raise invalid(f"is {value!r}, which has another meaning in templates")
    return value


def _check_limit(value: object, info: ValidationInfo) -> int:
    return checked_integer(value, 1, MAP_WIDTH if info.context is None else info.context.map_width)


def _check_result(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise invalid(f"{shown(value)} is not a node of this program")
    return value


def _or_default(value: object) -> object:
    return DEFAULT_RETRIES if value is None else value


class MapIn(Declared):
    """The node runs once for every item of a list."""

    over: NodeReference = Field(description="The node whose output is the list.")
    path: PathText | None = Field(None, description="Path in that output, such as plan.steps.")
    limit: Annotated[int, Field(ge=1), BeforeValidator(_check_limit)] | None = Field(
        None, description="The longest list allowed."
    )


class NodeIn(Declared):
    """One node: a call, or with ``map`` one for every item of a list."""

    id: Annotated[str, BeforeValidator(_check_id)] = Field(pattern=f"^{NODE_ID.pattern}$")
    agent: Annotated[str, printable(MAX_AGENT_CHARS)] | None = Field(
        None, description="Agent that makes the call; by default the id."
    )
    model: ModelText | None = None
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="Chat messages; texts may hold {{node.output}}."
    )
    prompt: str | None = Field(None, description="Instead of messages.")
    parents: Annotated[list[NodeReference], Field(fail_fast=True)] | None = Field(
        None, description="Nodes that end before; by default those that the node names elsewhere."
    )
    sampling: dict[str, Any] | None = Field(None, description="Further fields of the request.")
    expected_output_tokens: Annotated[int, Within(1, MAX_EXPECTED_TOKENS)] | None = None
    map: MapIn | None = None
    when: WhenIn | None = None
    retries: Annotated[int, Within(0, MAX_RETRIES), BeforeValidator(_or_default)] = DEFAULT_RETRIES

    @model_validator(mode="after")
    def _check_sampling(self) -> Self:
        for name in self.sampling or ():
            if name in NOT_SAMPLING:
                allowed = ", ".join(NOT_SAMPLING)
                raise invalid(f"is not for sampling; nor are {allowed}", at=f"sampling.{name}")
        return self


class ProgramIn(Declared):
    """A program: its nodes, and what they share."""

    model: ModelText | None = Field(None, description="Model of the nodes that name none.")
    nodes: Annotated[list[NodeIn], Field(fail_fast=True)] | None = Field(None, min_length=1)
    result: Annotated[str, BeforeValidator(_check_result)] | None = Field(
        None, description="The node whose output is the result."
    )
