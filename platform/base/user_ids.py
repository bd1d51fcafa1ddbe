"""Normalise the ids of end users in calls, the management API and the console.

Ids that are displayed alike must be the same user: a blocked user could otherwise append a space to its
name. An id is in Unicode's normal form C without surrounding white space, and invisible characters are
rejected. Letters are unchanged: ids are case-sensitive.

Weakness: look-alikes of different scripts (a Latin and a Cyrillic "a") are different users.
"""

from __future__ import annotations

import unicodedata

USER_ID_CHARS = 200
"""Longest id of an end user, in characters."""
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, format characters (zero-width and bidirectional ones), halves of surrogate pairs,
line and paragraph separators."""
_UNSEEN_RANGES = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)
"""Letters and marks without a glyph: joiners, fillers, variation selectors."""


def normal_user_id(text: str) -> str:
    """Return the normal form of an id.

    Raises ValueError for an id that is blank or too long or has an invisible character; the message
    names the error and the limit.
    """
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFC", text)
        for position, character in enumerate(text, start=1):
            if _is_unseen(character):
                raise ValueError(
                    f"has U+{ord(character):04X} at position {position}; control, zero-width and"
                    " bidirectional characters are not allowed: remove it"
                )
    text = text.strip()
    if not text:
        raise ValueError("is blank; name a user")
    if len(text) > USER_ID_CHARS:
        raise ValueError(f"has {len(text)} characters; must have at most {USER_ID_CHARS}")
    return text


def _is_unseen(character: str) -> bool:
    code = ord(character)
    return unicodedata.category(character) in _UNSEEN_CATEGORIES or any(
        first <= code <= last for first, last in _UNSEEN_RANGES
    )
