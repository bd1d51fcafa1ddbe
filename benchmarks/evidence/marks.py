"""Marks in reports: the fingerprint of the code that made one, and why it still holds.

In Markdown a mark is one or two lines at the end::

    Fingerprint: `0123456789ab` of `fairserve reproduce vtc-tables --seeds 25`.

    Still holds at `abcdef012345`: only messages have changed.

The command may be followed by the hash of the report's short cases:
``, short cases `cd34ef56ab12`.`` In JSON the mark is the key ``fingerprint`` with the same data as
an object. The reason holds only for the fingerprint that it names, so it becomes stale with the
next change of the code.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MADE = re.compile(
    r"^Fingerprint: `(?P<code>[0-9a-f]+)` of `(?P<command>[^`]+)`"
    r"(?:, short cases `(?P<short_cases>[0-9a-f]+)`)?\.$",
    re.MULTILINE,
)
_HOLDS = re.compile(r"^Still holds at `(?P<at>[0-9a-f]+)`: (?P<reason>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StillHolds:
    """Reason why a report holds for other code than that by which it was made."""

    at: str
    """Fingerprint of that code."""
    reason: str
    """Reason in one line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Origin of a report as written in it. Missing parts are empty strings."""

    code: str = ""
    """Fingerprint of the code and the command that made it."""
    command: str = ""
    short_cases: str = ""
    """Hash of the figures of its short cases at that time."""
    still_holds: StillHolds | None = None

    def lines(self) -> str:
        """Return the mark for the end of a Markdown document."""
        parts = []
        if self.code:
            cases = f", short cases `{self.short_cases}`" if self.short_cases else ""
            parts.append(f"Fingerprint: `{self.code}` of `{self.command}`{cases}.\n")
        if self.still_holds is not None:
            parts.append(f"Still holds at `{self.still_holds.at}`: {self.still_holds.reason}\n")
        return "\n".join(parts)

    def to_plain(self) -> dict[str, Any]:
        """Return the mark for the key ``fingerprint`` of a JSON document."""
        plain: dict[str, Any] = {}
        if self.code:
            plain |= {"code": self.code, "command": self.command}
        if self.short_cases:
            plain["short_cases"] = self.short_cases
        if self.still_holds is not None:
            plain["still_holds"] = {
                "at": self.still_holds.at,
                "reason": self.still_holds.reason,
            }
        return plain


def read_mark(path: Path) -> Mark:
    """Return the mark of a Markdown or JSON document; empty if it has none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        plain = json.loads(text).get("fingerprint", {})
        holds = plain.get("still_holds")
        return Mark(
            plain.get("code", ""),
            plain.get("command", ""),
            plain.get("short_cases", ""),
            None if holds is None else StillHolds(holds["at"], holds["reason"]),
        )
    made, still = _MADE.search(text), _HOLDS.search(text)
    return Mark(
        made["code"] if made else "",
        made["command"] if made else "",
        (made["short_cases"] or "") if made else "",
        StillHolds(still["at"], still["reason"]) if still else None,
    )


def write_mark(path: Path, mark: Mark) -> None:
    """Replace the mark of a document; the rest does not change."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        indent = re.match(r"\{\n( *)", text)
        document = json.loads(text) | {"fingerprint": mark.to_plain()}
        text = json.dumps(document, indent=len(indent[1]) if indent else None) + "\n"
    else:
        rest = _HOLDS.sub("", _MADE.sub("", text)).rstrip()
        text = "\n\n".join(part for part in (rest, mark.lines().rstrip()) if part) + "\n"
    path.write_text(text, encoding="utf-8")
