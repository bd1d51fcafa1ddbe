"""Body of a node's call: ``messages`` or a ``prompt`` whose texts contain placeholders.

A message's ``content`` is a template or, in a list of parts, the ``text`` of each part; all other keys
are sent as declared. A body is resolved to pieces when its node becomes ready, and built when the call
is sent (:meth:`Body.build`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairserve.interactions.programs.output import sized
from fairserve.interactions.programs.program_fields import ProgramError, kind, shown
from fairserve.interactions.programs.template import (
    Pieces,
    Placeholder,
    ReadText,
    Template,
    TemplateError,
    TemplateSyntaxError,
    parse_template,
)

Slot = tuple[str | int, ...]
"""Position of a text in the body: ``("messages", 0, "content")``."""


@dataclass(frozen=True, slots=True)
class RenderedBody:
    """A rendered body whose texts are not joined yet."""

    fixed: Mapping[str, Any]
    texts: tuple[tuple[Slot, Pieces], ...]
    size_bytes: int

    def build(self) -> dict[str, Any]:
        """Return ``{"messages": [...]}`` or ``{"prompt": ...}``, the caller's own copy."""
        body = copy.deepcopy(dict(self.fixed))
        for slot, pieces in self.texts:
            holder: Any = body
            for key in slot[:-1]:
                holder = holder[key]
            holder[slot[-1]] = pieces.join()
        return body


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """A body whose texts are replaced by templates."""

    fixed: Mapping[str, Any] = field(hash=False)
    """Body with empty texts, read-only."""
    texts: tuple[tuple[Slot, Template], ...]
    fixed_bytes: int
    """Size of the JSON without the texts, in bytes."""

    @property
    def least_bytes(self) -> int:
        """Return the size in bytes with every placeholder empty."""
        return self.fixed_bytes + sum(template.literal_bytes for _, template in self.texts)

    @property
    def placeholders(self) -> tuple[tuple[Slot, Placeholder], ...]:
        """Return all placeholders with their positions."""
        return tuple(
            (slot, placeholder)
            for slot, template in self.texts
            for placeholder in template.placeholders
        )

    def resolve(self, read_text: ReadText, max_bytes: int) -> RenderedBody:
        """Fill the placeholders. Raises TemplateError, also for a result over ``max_bytes``."""
        size_bytes = self.least_bytes
        texts = []
        for slot, template in self.texts:
            room_bytes = max_bytes - size_bytes + template.literal_bytes
            try:
                pieces = template.resolve(read_text, room_bytes)
            except TemplateError as error:
                raise TemplateError(f"{slot_path(slot)}: {error}") from None
            size_bytes += pieces.size_bytes - template.literal_bytes
            texts.append((slot, pieces))
        return RenderedBody(self.fixed, tuple(texts), size_bytes)


def slot_path(slot: Slot) -> str:
    """Return a slot as a client writes it: ``messages[0].content``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in slot).lstrip(".")


def parse_body(
    messages: Sequence[Mapping[str, Any]] | None, prompt: str | None, path: str
) -> BodyTemplate:
    """Parse the ``messages`` or the ``prompt`` of a declared node at ``path``. Raises ProgramError."""
    if messages is not None and prompt is not None:
        raise ProgramError(path, "has both messages and prompt; give one of them")
    texts: list[tuple[Slot, Template]] = []
    if prompt is not None:
        if not prompt:
            raise ProgramError(f"{path}.prompt", "is empty")
        texts.append((("prompt",), _template(prompt, path, ("prompt",))))
        return _finished({"prompt": ""}, texts, path)
    if messages is None:
        raise ProgramError(path, "needs messages or prompt")
    if not messages:
        raise ProgramError(f"{path}.messages", "is empty")
    fixed = [
        _message(message, path, ("messages", number), texts)
        for number, message in enumerate(messages)
    ]
    return _finished({"messages": fixed}, texts, path)


def _message(
    plain: Mapping[str, Any], path: str, slot: Slot, texts: list[tuple[Slot, Template]]
) -> dict[str, Any]:
    """Return the message with empty texts; add its templates to ``texts``."""
    where = f"{path}.{slot_path(slot)}"
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise ProgramError(f"{where}.role", f"is {shown(role)}; it must be a string")
    if "content" not in plain:
        raise ProgramError(f"{where}.content", "is missing; allowed: null for no content")
    fixed = copy.deepcopy(dict(plain))
    content = plain["content"]
    if isinstance(content, str):
        texts.append(((*slot, "content"), _template(content, path, (*slot, "content"))))
        fixed["content"] = ""
    elif isinstance(content, list):
        for number, part in enumerate(content):
            part_slot: Slot = (*slot, "content", number)
            if not isinstance(part, Mapping):
                raise ProgramError(
                    f"{path}.{slot_path(part_slot)}", f"must be an object, not {kind(part)}"
                )
            if isinstance(part.get("text"), str):
                part_slot = (*part_slot, "text")
                texts.append((part_slot, _template(part["text"], path, part_slot)))
                fixed["content"][number]["text"] = ""
    elif content is not None:
        raise ProgramError(
            f"{where}.content", f"must be a string, a list of parts or null, not {kind(content)}"
        )
    return fixed


def _template(text: str, path: str, slot: Slot) -> Template:
    try:
        return parse_template(text)
    except TemplateSyntaxError as error:
        raise ProgramError(f"{path}.{slot_path(slot)}", str(error)) from None


def _finished(fixed: dict[str, Any], texts: list[tuple[Slot, Template]], path: str) -> BodyTemplate:
    try:
        _, fixed_bytes = sized(json.dumps(fixed, ensure_ascii=False, separators=(",", ":")))
    except (TypeError, ValueError):
        raise ProgramError(path, "holds something that is not JSON") from None
    return BodyTemplate(fixed, tuple(texts), fixed_bytes)
