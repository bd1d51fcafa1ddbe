"""Sanitises a worker's error message for the client whose call it answers.

A client needs the cause of its error and nothing about the hosts behind the platform: addresses,
paths, keys and ids of the operator's account are replaced. An error that is about that account by its
status or code has no message for the client (:mod:`fairserve.engine.wire.reported_error`).

Weakness: a host name without a port and a domain is recognised only if it is the worker's own. A message
about the account under another status reaches the client, without its key.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from fairserve.engine.wire.base import WorkerRejectedError

MAX_CHARS = 300
_READ_CHARS = 2_000
"""Maximum characters that are searched, to bound the time for long messages."""

ADDRESS, PATH, KEY = "[address]", "[path]", "[key]"

_DOMAINS = (
    "ai|app|cloud|cluster|cn|co|com|corp|de|dev|eu|home|internal|intra|io|lan|local|net|org|svc"
    "|uk|us"
)
_REPLACEMENTS = (
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>)\]]+", re.IGNORECASE), ADDRESS),
    (re.compile(r"\bbearer\s+\S+", re.IGNORECASE), KEY),
    (
        re.compile(
            r"\b(?:sk|pk|rk|hf|gsk|xai|ghp)[-_][\w*.-]{4,}"
            r"|\b(?:key|org|proj|acct|user|req)[-_]\w*[\d*][\w*.-]*"
            r"|\bAIza[\w-]{10,}|\beyJ[\w.-]{10,}"
        ),
        KEY,
    ),
    (re.compile(r"\[[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*\](?::\d+)?", re.IGNORECASE), ADDRESS),
    (
        re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE),
        ADDRESS,
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), ADDRESS),
    (
        re.compile(
            rf"\b(?:[\w-]{{1,63}}\.){{1,8}}(?:{_DOMAINS})\b(?::\d+)?|\blocalhost\b(?::\d+)?",
            re.IGNORECASE,
        ),
        ADDRESS,
    ),
    (re.compile(r"\b[a-z][\w.-]{0,100}:\d{2,5}\b", re.IGNORECASE), ADDRESS),
    (re.compile(r"\bport[\s:=]+\d{2,5}\b", re.IGNORECASE), ADDRESS),
    (re.compile(r"(?<![\w.])/(?:[\w.@-]+/)+[\w.@-]*"), PATH),
    (re.compile(r"\[address\]['\"]?[:,]\s?\d{2,5}\b"), ADDRESS),
)
_LONG_WORD = re.compile(r"\b[\w-]{32,}\b")


def public_message(text: str, private: Collection[str] = ()) -> str:
    """Return the message for a client, on one line of at most ``MAX_CHARS`` characters.

    ``private`` are texts that must not appear, such as the worker's host name and token.
    """
    text = text[:_READ_CHARS]
    for each in sorted(filter(None, private), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(each)}(?!\w)", ADDRESS, text, flags=re.IGNORECASE)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _LONG_WORD.sub(_without_key, text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."


def public_rejection(
    rejected: WorkerRejectedError, private: Collection[str] = ()
) -> WorkerRejectedError:
    """Return a worker's rejection with its message for a client."""
    message = public_message(str(rejected.error.get("message", "")), private)
    return WorkerRejectedError(rejected.status, {**rejected.error, "message": message})


def _without_key(word: re.Match[str]) -> str:
    """Replace a long word of digits and letters, which is a key, an id or a hash."""
    text = word.group()
    mixed = any(map(str.isdigit, text)) and any(map(str.isalpha, text))
    return KEY if mixed else text
