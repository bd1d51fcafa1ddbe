"""Output of the admin commands: tables for people, the raw answer with ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fairserve.platform.base.command_line import print_table

EMPTY = "-"


def print_json(answer: Any) -> None:
    """Print the raw answer."""
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def print_one(answer: Mapping[str, Any]) -> None:
    """Print one object, a field a line, without limits that are not set."""
    print_table([[name, _text(value)] for name, value in _flat(answer)])


def print_page(page: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Print a page of a list as a table, and on stderr how to see the rest."""
    rows = [[_cell(item, column) for column in columns] for item in page["items"]]
    print_table(rows, [column.replace("_", " ") for column in columns])
    shown = page["offset"] + len(rows)
    if shown < page["total"]:
        more = f"{len(rows)} of {page['total']}; --offset {shown} shows more"
        print(more, file=sys.stderr)


def state_of(item: Mapping[str, Any]) -> str:
    """Return the state of a tenant or an app: deleted, suspended or active."""
    for name in ("deleted", "suspended"):
        if item.get(f"{name}_at"):
            return name
    return "active"


def _cell(item: Mapping[str, Any], column: str) -> str:
    if column == "state":
        return state_of(item)
    value = item.get(column)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(v)}" for name, v in _limits(value)) or EMPTY
    return _text(value)


def _flat(answer: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in answer.items():
        if isinstance(value, Mapping):
            inner = dict(_limits(value)) if "soft_end" in value else value
            found.extend(_flat(inner, f"{prefix}{name}."))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, item in enumerate(value, start=1):
                found.extend(_flat(item, f"{prefix}{name}.{number}."))
        else:
            found.append((prefix + name, value))
    return found


def _limits(contract: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the limits that are set."""
    return [
        (name, value)
        for name, value in contract.items()
        if value is not None and not (name == "soft_end" and contract.get("soft_budget") is None)
    ]


def _text(value: Any) -> str:
    if value is None or value in ("", []):
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "".join(char if char.isprintable() else "?" for char in str(value))
