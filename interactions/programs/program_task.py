"""A task: one call that a run of a program requires, with the texts that fill it.

A task id is the node's id, or ``node[3]`` for an instance of a mapped node; it is the same over retries
and restarts, while ``attempt`` counts the attempts. The texts are found when the task is made and
joined by :meth:`Task.body` when the call is sent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.programs.call_body import RenderedBody
from fairserve.interactions.programs.output import (
    JsonMemo,
    Output,
    OutputFieldError,
    Path,
    read,
    read_value,
    sized,
    text_of,
)
from fairserve.interactions.programs.template import Placeholder, TemplateError, TooLargeError


@dataclass(frozen=True, slots=True)
class Task:
    """One call to make."""

    task_id: str
    node: str
    index: int | None
    """Number of the instance of a mapped node; None for any other."""
    attempt: int
    """Attempt number from 1; restarts count as retries do, so that task id and attempt name one call."""
    agent: str
    model: str
    parents: tuple[str, ...]
    """Task ids that ended before it and that it may have read."""
    priority: float
    """Expected output tokens on the longest path from here to a sink, itself included."""
    expected_output_tokens: int | None
    """Declared expected output; None: from the app's profile."""
    sampling: Mapping[str, Any]
    """Declared sampling; read-only."""
    rendered: RenderedBody

    def body(self) -> dict[str, Any]:
        """Return ``{"messages": [...]}`` or ``{"prompt": ...}``, new each time."""
        return self.rendered.build()

    def request(self) -> dict[str, Any]:
        """Return the call as a new request: model, sampling, and messages or prompt."""
        sampling = copy.deepcopy(dict(self.sampling))
        return {"model": self.model, **sampling, **self.body()}


def call_name(task_id: str, attempt: int) -> str:
    """Return the name of an attempt's call: the task id, and from the second attempt its number."""
    return task_id if attempt == 1 else f"{task_id}~{attempt}"


class Filling:
    """Fills the placeholders of one node's instances, each text of a parent found once."""

    def __init__(self, output_of: Callable[[str], Output], memo: JsonMemo) -> None:
        self._output_of = output_of
        self._memo = memo
        self._found: dict[str, tuple[str, int]] = {}
        self._item: Any = None
        self._index: int | None = None

    def for_instance(self, index: int | None, item: Any) -> None:
        """Select the instance to fill from now on."""
        self._index, self._item = index, item

    def read_text(self, placeholder: Placeholder, room_bytes: int) -> tuple[str, int]:
        """Read a placeholder's text, as template.ReadText defines it."""
        if placeholder.kind == "index":
            return sized(str(self._index))
        if placeholder.kind == "item":
            return self._sized(placeholder, read_value, self._item, "the item")
        known = self._found.get(placeholder.written)
        if known is None:
            known = self._found[placeholder.written] = self._output(placeholder, room_bytes)
        return known

    def _output(self, placeholder: Placeholder, room_bytes: int) -> tuple[str, int]:
        output = self._output_of(placeholder.node)
        if output.skipped:
            return "", 0
        if not placeholder.path and output.size_bytes > room_bytes:
            # Not built only to be rejected: a mapped node's texts together may be very many.
            raise TooLargeError(placeholder, output.size_bytes, room_bytes)
        if not placeholder.path and not output.mapped:
            return output.texts[0], output.size_bytes
        return self._sized(placeholder, read, output, f"the output of {placeholder.node!r}")

    def _sized(
        self,
        placeholder: Placeholder,
        find: Callable[[Any, Path, JsonMemo], Any],
        source: Any,
        name: str,
    ) -> tuple[str, int]:
        try:
            return sized(text_of(find(source, placeholder.path, self._memo)))
        except OutputFieldError as error:
            raise TemplateError(f"{placeholder.written}: {name} {error}") from None
