"""Fields of a request that change how its prompt is made, in vLLM's dialect.

The platform counts a prompt with the same options with which the worker makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Options of one prompt; the defaults are those of a request that names none."""

    generation_prompt: bool = True
    """True: the start of the answer follows the messages."""
    continue_final: bool = False
    """True: the last message is not ended, and the answer continues it."""
    special_tokens: bool | None = None
    """True: the tokenizer adds its special tokens; None: to texts only, chats have the template's."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """More variables of the chat template."""

    def problem(self) -> str:
        """Return why the options exclude each other; empty if they do not."""
        if self.continue_final and self.generation_prompt:
            return "continue_final_message needs add_generation_prompt to be false"
        return ""

    def for_template(self) -> dict[str, Any]:
        """Return the arguments of ``apply_chat_template``."""
        arguments = {**self.template, "add_generation_prompt": self.generation_prompt}
        return arguments | {"continue_final_message": True} if self.continue_final else arguments

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``/tokenize`` for a chat that differ from the defaults."""
        fields: dict[str, Any] = {}
        if self.continue_final:
            fields["continue_final_message"] = True
        if self.special_tokens is not None:
            fields["add_special_tokens"] = self.special_tokens
        if self.template:
            fields["chat_template_kwargs"] = dict(self.template)
        return fields


DEFAULT_PROMPT = PromptOptions()
