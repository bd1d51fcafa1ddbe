"""Styles, scripts and libraries of the pages, in memory, with versioned URLs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
PLACE = "/console/static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    """A file to serve."""

    content: bytes
    media_type: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    """Return all files by their path in the folder."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in _TYPES:
            content = path.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:16]
            name = path.relative_to(FOLDER).as_posix()
            found[name] = Asset(content, _TYPES[path.suffix], version)
    return found


def asset_url(name: str) -> str:
    """Return the URL from which a page loads a file. Raises KeyError for an unknown file."""
    return f"{PLACE}/{assets()[name].version}/{name}"
