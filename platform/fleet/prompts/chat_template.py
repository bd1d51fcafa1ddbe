"""Chat templates, rendered as transformers renders them, without it.

A template is a program in Jinja that is a part of a checkpoint. It runs in the sandbox of transformers:
immutable, blocks trimmed, with ``raise_exception``, ``strftime_now``, ``tojson``, loop controls and the
tag ``generation``. Its variables are the messages, the tools, the special tokens and the options of the
prompt. Templates are compiled when they are read.

Departure: a text of more than MAX_CHARS is an error. Weakness: the sandbox bounds ranges, but not the
time of a template that loops without output; a template is trusted as its checkpoint is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairserve.platform.base.clock import utc_s
from fairserve.platform.fleet.prompts.template_parts import reads_parts

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Template of prompts with tools, if a checkpoint has several."""
MAX_CHARS = 1 << 26
"""Maximum characters of a rendered prompt."""
_END = "CONTINUE_FINAL_MESSAGE_TAG "
"""Mark of the end of a message that the answer continues; transformers' own."""

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template, ready to be rendered."""

    program: Template
    reads_parts: bool
    """Flag: it gets contents as lists of parts."""


class ChatTemplate:
    """The chat templates of a checkpoint by name. Thread-safe."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        """``special_tokens`` are variables such as ``bos_token``.

        Raises jinja2.TemplateSyntaxError, and KeyError if no template is the default.
        """
        self.text = "\n".join(templates.values())
        """The text of all templates."""
        compiled = {name: compile_template(text) for name, text in templates.items()}
        self._plain = compiled[DEFAULT]
        self._with_tools = compiled.get(TOOL_USE, self._plain)
        self._variables = {**(special_tokens or {}), "documents": None}

    def render(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt. A content is a text or a list of texts, which are given as vLLM does.

        With ``continue_final_message`` it ends with the last message. Raises ValueError if that is
        impossible or the prompt is too long, and whatever the template raises.
        """
        if not messages:
            raise ValueError("a conversation needs at least one message")
        last = ""
        if continue_final_message:
            *before, message = messages
            if not isinstance(message.get("content"), str | list):
                raise ValueError("the last message has no content to continue")
            *texts, last = _texts(message) or [""]
            messages = [*before, {**message, "content": [*texts, last + _END]}]
        template = self._plain if tools is None else self._with_tools
        given = _parts if template.reads_parts else _text
        messages = [{**message, "content": given(message)} for message in messages]
        parts, size = [], 0
        # The options of a prompt overwrite special tokens.
        for part in template.program.generate(
            {**self._variables, **variables}, messages=messages, tools=tools
        ):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARS:
                raise ValueError(f"the prompt has more than {MAX_CHARS} characters")
        text = "".join(parts)
        return _until(text, last) if continue_final_message else text


def compile_template(text: str) -> CompiledTemplate:
    """Compile a template. Raises jinja2.TemplateSyntaxError."""
    environment = _environment()
    return CompiledTemplate(environment.from_string(text), reads_parts(environment.parse(text)))


def _texts(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    return [content] if isinstance(content, str) else content or []


def _text(message: dict[str, Any]) -> str:
    return "\n".join(filter(None, _texts(message)))


def _parts(message: dict[str, Any]) -> str | list[dict[str, str]]:
    """The result of a tool is one text in all templates."""
    if message.get("role") == "tool":
        return _text(message)
    return [{"type": "text", "text": text} for text in _texts(message)]


def _until(text: str, last: str) -> str:
    """Return a prompt up to the mark at the end of its last message."""
    mark = _END.strip()
    end = text.rfind(mark)
    if end < 0 or last.strip() not in text:
        raise ValueError("the last message is not in the prompt as it is, and cannot be continued")
    # A template that trims messages has trimmed the mark, too.
    return text[:end] if text.startswith(_END, end) else text[:end].rstrip()


class _Generation(Extension):
    """The tag ``generation``, which marks the answers for training. It leaves its content as it is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # Jinja only reads it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    return environment


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    # The time of this host, as at the worker: a prompt has the day, which differs around midnight.
    return datetime.fromtimestamp(utc_s()).strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes what HTML does not allow."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
