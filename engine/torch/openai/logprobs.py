"""Log probabilities in OpenAI's two shapes, for chat and for completions.

As in vLLM, every generated token is listed, including the stop token at the end and tokens whose
text is held back or was cut off by a stop string. Their number is the usage's. ``text_offset`` is
the position of each token in the text, in characters from the output's start: a token at or past
the end of the text is not part of it.

Besides the requested most likely tokens, completions list the chosen one, as OpenAI does. There,
tokens with the same text share an entry, that of the most likely one.
"""

from __future__ import annotations

from typing import Any

from fairserve.engine.torch.logprobs import TokenLogprobs
from fairserve.engine.torch.token_texts import TokenTexts

_LOWEST = -9999.0
"""Number in place of minus infinity, which JSON lacks, as used by OpenAI and vLLM."""


def chat_logprobs(tokens: list[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
    """Return ``logprobs`` of a chat choice or of a chunk of it."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": texts.text_of(token_id),
            "logprob": max(logprob, _LOWEST),
            "bytes": list(texts.bytes_of(token_id)),
        }

    content = [
        entry(token.token_id, token.logprob) | {"top_logprobs": [entry(*top) for top in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: list[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
    """Return ``logprobs`` of a completion choice or of a chunk of it."""
    likeliest = []
    for token in tokens:
        entries: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
            entries.setdefault(texts.text_of(token_id), max(logprob, _LOWEST))
        likeliest.append(entries)
    return {
        "tokens": [texts.text_of(token.token_id) for token in tokens],
        "token_logprobs": [max(token.logprob, _LOWEST) for token in tokens],
        "top_logprobs": likeliest,
        "text_offset": [token.text_offset for token in tokens],
    }
