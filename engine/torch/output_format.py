"""The form that a request demands of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

FormatKind = Literal["json", "choice", "regex", "grammar"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A JSON schema, a list of the possible outputs, a regular expression, or a grammar."""

    field: str
    """Field of the request, for errors."""
    kind: FormatKind
    definition: Any

    def text(self) -> str:
        """Return the definition as text. Raises orjson.JSONEncodeError if it is no JSON."""
        if isinstance(self.definition, str):
            return self.definition
        return orjson.dumps(self.definition).decode()
