"""Headers that name a call's run, agent and parents, and the check of their values.

The names and bounds are those of :mod:`fairserve.interactions.tracking.identity`, which reads the
headers in the server; a test holds them equal, because this distribution has no dependencies.
"""

from __future__ import annotations

MAX_ID_CHARS = 128
"""Longest value of a header that names one thing, in characters."""
MAX_PARENTS = 64
"""Most calls that one call names as its parents."""

RUN_HEADER = "x-interaction-id"
FINAL_HEADER = "x-interaction-final"
CALL_HEADER = "x-call-id"
PARENTS_HEADER = "x-parent-ids"
AGENT_HEADER = "x-agent"


def checked_text(value: str, what: str) -> str:
    """Return text that a header can carry, without surrounding space. Raises ValueError."""
    text = value.strip()
    if not text:
        raise ValueError(f"{what}: is empty; leave it out instead")
    if len(text) > MAX_ID_CHARS:
        raise ValueError(f"{what}: has {len(text)} characters; allowed: {MAX_ID_CHARS}")
    if not text.isprintable():
        raise ValueError(f"{what}: has characters that are not printable")
    if not text.isascii():
        raise ValueError(f"{what}: has characters that no header can carry; allowed: ASCII")
    return text
