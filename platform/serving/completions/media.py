"""Check the parts of a message: texts are texts, and the bytes of media come with the call.

Workers fetch nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADDRESSED = ("image_url", "video_url", "audio_url")
"""Parts whose media is at an address."""
TEXTS = ("text", "refusal")
"""Parts that are texts."""
MAX_WORD_CHARS = 32


def media_problem(part: Mapping[str, Any]) -> str:
    """Return the problem of a part of a message, as ``field|text``; empty if there is none."""
    for name in TEXTS:
        if not isinstance(part.get(name, ""), str):
            return f"{name}|must be a text"
    for name in ADDRESSED:
        if (media := part.get(name)) is not None:
            plain = {"url": media} if isinstance(media, str) else media
            if problem := _problem(plain, "detail"):
                return f"{name}{problem}"
            url = plain.get("url")
            if not (isinstance(url, str) and url[:5] == "data:"):
                return f"{name}|must have a data: URL; workers fetch nothing"
    if (audio := part.get("input_audio")) is not None:
        if problem := _problem(audio, "format"):
            return f"input_audio{problem}"
        data = audio.get("data")
        if not isinstance(data, str) or ":" in data:
            return "input_audio.data|must be base64; workers fetch nothing"
    return ""


def _problem(media: Any, word: str) -> str:
    """Return the problem of the object of a part, after its name; ``word`` is a field with a word."""
    if not isinstance(media, dict):
        return "|must be an object"
    value = media.get(word)
    if value is not None and not (
        isinstance(value, str) and value.isalnum() and len(value) <= MAX_WORD_CHARS
    ):
        return f".{word}|must be a word of up to {MAX_WORD_CHARS} letters and digits"
    return ""
