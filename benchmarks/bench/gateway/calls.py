"""The calls of the benchmark: chat completions with a prompt of 200 words, each prompt different.

The stub worker answers each call with as many tokens as its ``max_tokens``, each of which begins with
:data:`TOKEN`, so that the load can count the tokens of every answer. A prompt that begins with
:data:`HOLD` and a number of seconds makes it pause for so long after the first token.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Literal

MODEL = "stub"
TOKEN = " token"  # noqa: S105
TOKENS = tuple(TOKEN + letter for letter in "abcdefgh")
"""Tokens of an answer, in turn: LiteLLM ends streams that repeat a chunk a hundred times."""
HOLD = "hold"
USERS = 16
PATH = "/v1/chat/completions"

_SYSTEM_WORDS, _USER_WORDS = 80, 120
_SEED = 28
_SYLLABLES = (
    "ba",
    "den",
    "fo",
    "gil",
    "ka",
    "lum",
    "mi",
    "nor",
    "pe",
    "ras",
    "su",
    "tiv",
    "wo",
    "zen",
)

Kind = Literal["whole", "stream"]
KINDS: tuple[Kind, ...] = ("whole", "stream")
"""Not streamed, and streamed."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """Calls of one kind with one number of output tokens."""

    kind: Kind
    tokens: int

    @property
    def name(self) -> str:
        """Return the part of a figure's name."""
        return f"{self.kind}_{self.tokens}"


class Bodies:
    """Request bodies of one shape, of which no two have the same prompt. Cost: 3 us a body."""

    def __init__(self, shape: CallShape, *, first: int = 0, hold_s: float = 0.0) -> None:
        """Number the calls from ``first``; the worker pauses each for ``hold_s``."""
        self._number = first
        system = f"You answer in one word.{words(_SYSTEM_WORDS, _SEED)}"
        pause = f"{HOLD} {hold_s:g} " if hold_s else ""
        body = json.dumps(
            {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": f"{pause}@number{words(_USER_WORDS, _SEED + 1)}"},
                ],
                "max_tokens": shape.tokens,
                "stream": shape.kind == "stream",
                "user": "user-@user",
            }
        )
        self._before, rest = body.encode().split(b"@number")
        self._between, self._after = rest.split(b"@user")

    def next(self) -> bytes:
        """Return the body of the next call."""
        self._number += 1
        number, user = b"%d" % self._number, b"%d" % (self._number % USERS)
        return b"".join((self._before, number, self._between, user, self._after))


def words(count: int, seed: int) -> str:
    """Return ``count`` words of one to four syllables, each after a space."""
    draw = random.Random(seed)  # noqa: S311
    return "".join(
        f" {''.join(draw.choices(_SYLLABLES, k=draw.randint(1, 4)))}" for _ in range(count)
    )
