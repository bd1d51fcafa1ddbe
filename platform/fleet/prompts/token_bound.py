"""Lower bound of a prompt's tokens without tokenisation, for tokenizers that allow one.

If every byte of a text becomes part of a token, no token represents more characters than the longest
text of the vocabulary. This holds for byte-level BPE and BPE with byte fallback, provided that their
normalizers do not shorten a text; canonical composition (NFC) shortens it to a quarter at most. Other
tokenizers have no bound: some drop white space, or map many characters to one unknown token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

NFC_SHRINKS = 4
"""Maximum length of a character's canonical decomposition."""
KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace"}
Step = Mapping[str, Any]


def chars_per_token(tokenizer: Any) -> int | None:
    """Return the maximum number of characters per token; None if there is no bound.

    ``tokenizer`` is a ``tokenizers.Tokenizer``. Slow: reads its whole vocabulary.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None  # such a token absorbs any amount of white space
    before = list(_steps(tokenizer.pre_tokenizer, "pretokenizers"))
    byte_level = any(step["type"] == "ByteLevel" for step in before)
    model = json.loads(tokenizer.model.__getstate__())
    if model["type"] != "BPE" or not (byte_level or model.get("byte_fallback")):
        return None
    if not all(_keeps_all(step) for step in before):
        return None
    shrinks = 1
    for step in _steps(tokenizer.normalizer, "normalizers"):
        if step["type"] == "NFC":
            shrinks *= NFC_SHRINKS
        elif not _never_shortens(step):
            return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return max(1, longest * shrinks)


def _steps(stage: Any, name: str) -> Iterator[Step]:
    """Yield the steps of a normalizer or pre-tokenizer, with sequences flattened."""
    if stage is None:
        return
    rest = [json.loads(stage.__getstate__())]
    while rest:
        step = rest.pop()
        if step["type"] == "Sequence":
            rest += step[name]
        else:
            yield step


def _keeps_all(step: Step) -> bool:
    """Return whether a pre-tokenizer keeps all of a text."""
    if step["type"] == "Split":
        return bool(step["behavior"] != "Removed")
    return step["type"] in KEEPING_PRE_TOKENIZERS


def _never_shortens(step: Step) -> bool:
    """Return whether a normalizer's output is at least as long as its input."""
    if step["type"] == "Replace":
        old = step["pattern"].get("String")
        return old is not None and len(step["content"]) >= len(old)
    return step["type"] in ("Prepend", "ByteLevel")
