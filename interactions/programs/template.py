"""Texts with placeholders, parsed once; they can read the outputs of parents and nothing else.

====================================== ===========================================================
``{{node.output}}``                    the output of a parent (or any ancestor), as it is
``{{node.output.key.0}}``              a field of an output that is JSON: keys and positions
``{{item}}``, ``{{item.key}}``         in a node with ``map``: what this instance runs for
``{{index}}``                          its position, from 0
``{{{{``                               two opening braces as text
====================================== ===========================================================

White space just inside the braces is allowed. There are no expressions, filters or attributes: any other
``{{`` is an error, while ``}}`` alone is text. Substituted text is never parsed again, so an output
that contains a placeholder stays text. Values of JSON are written as compact JSON unless they are
strings. Resolving finds the pieces and their size, which is bounded; joining them is left to the moment
when the call is sent, so that a thousand waiting calls share their parents' texts.

Cost: linear in the template; rendering is linear in the placeholders and in the JSON they read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fairserve.interactions.programs.output import Path, PathError, parse_path, sized

MAX_PLACEHOLDER_CHARS = 640

NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED_IDS = frozenset({"item", "index"})

ALLOWED = "{{node.output}}, {{node.output.key}}, {{item}}, {{item.key}}, {{index}}; {{{{ for text"


class TemplateSyntaxError(ValueError):
    """The text is not a valid template."""


class TemplateError(ValueError):
    """The template cannot be rendered with these outputs."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One place to fill."""

    written: str
    """Placeholder as in the template, without white space."""
    kind: Literal["output", "item", "index"]
    node: str = ""
    """Node whose output is inserted; empty for other placeholders."""
    path: Path = ()


class TooLargeError(TemplateError):
    """The call would exceed its limit with a placeholder's text."""

    def __init__(self, placeholder: Placeholder, text_bytes: int, room_bytes: int) -> None:
        room = f"{max(0, room_bytes)} of the bytes allowed are left"
        super().__init__(f"{placeholder.written} has {text_bytes} bytes; {room}")


class Pieces(NamedTuple):
    """A rendered text that is not joined yet."""

    texts: tuple[str, ...]
    size_bytes: int

    def join(self) -> str:
        """Return the text."""
        return "".join(self.texts)


ReadText = Callable[[Placeholder, int], tuple[str, int]]
"""The text for a placeholder and its bytes; it may give up over the bytes of the second argument.
Raises TemplateError."""


@dataclass(frozen=True, slots=True)
class Template:
    """Literal texts and placeholders in turn."""

    parts: tuple[str | Placeholder, ...]
    literal_bytes: int = field(compare=False)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Return its placeholders, repetitions included."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def resolve(self, read_text: ReadText, max_bytes: int) -> Pieces:
        """Fill the placeholders. Raises TemplateError, also for a result over ``max_bytes``."""
        size_bytes = self.literal_bytes
        texts: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            room_bytes = max_bytes - size_bytes
            text, text_bytes = read_text(part, room_bytes)
            if text_bytes > room_bytes:
                raise TooLargeError(part, text_bytes, room_bytes)
            size_bytes += text_bytes
            texts.append(text)
        return Pieces(tuple(texts), size_bytes)


def parse_template(text: str) -> Template:
    """Read a text. Raises TemplateSyntaxError naming the placeholder and the allowed ones."""
    parts: list[str | Placeholder] = []
    literal: list[str] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        literal.append(text[at:start])
        if text.startswith("{{{{", start):
            literal.append("{{")
            at = start + 4
            continue
        end = text.find("}}", start + 2, start + MAX_PLACEHOLDER_CHARS)
        if end < 0:
            raise TemplateSyntaxError(
                f"{text[start : start + 24]!r}: no }}}} ends it within {MAX_PLACEHOLDER_CHARS} "
                f"characters; allowed: {ALLOWED}"
            )
        if joined := "".join(literal):
            parts.append(joined)
        literal = []
        parts.append(_placeholder(text[start + 2 : end].strip()))
        at = end + 2
    literal.append(text[at:])
    if joined := "".join(literal):
        parts.append(joined)
    literal_bytes = sum(sized(part)[1] for part in parts if isinstance(part, str))
    return Template(tuple(parts), literal_bytes)


def _placeholder(inside: str) -> Placeholder:
    written = "{{" + inside + "}}"
    name, _, rest = inside.partition(".")
    if inside == "index":
        return Placeholder(written, "index")
    if inside == "item":
        return Placeholder(written, "item")
    if name == "item":
        return Placeholder(written, "item", "", _path(rest, written))
    output, dot, path = rest.partition(".")
    if name not in RESERVED_IDS and NODE_ID.fullmatch(name) and output == "output":
        return Placeholder(written, "output", name, _path(path, written) if dot else ())
    raise TemplateSyntaxError(f"{_short(written)} is no placeholder; allowed: {ALLOWED}")


def _path(text: str, written: str) -> Path:
    if re.search(r"[\s{}]", text):
        raise TemplateSyntaxError(
            f"{_short(written)}: keys have no white space and no braces; allowed: {ALLOWED}"
        )
    try:
        return parse_path(text)
    except PathError as error:
        raise TemplateSyntaxError(f"{_short(written)}: {error}") from None


def _short(written: str) -> str:
    return written if len(written) <= 80 else f"{written[:60]}...}}}}"
