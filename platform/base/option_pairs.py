"""Parser of options in the form ``key=value``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return ``{"a": 1, "b": "x"}`` for ``["a=1", "b=x"]``; a value is JSON if it parses as JSON.

    Raises ValueError for a part that is not ``key=value``, or a key given twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError("an option is written key=value")
        if key in options:
            raise ValueError(f"option {key} is given twice")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text.strip()
    return options
