"""Forces the tokens of an output, each computed by a forward pass as any other token.

The script is a grammar that allows one token at a time, so sampling, logprobs, pages, prefix reuse,
preemption and the end of an output are those of every call.

Where no value of a JSON schema is known beforehand, the output follows the schema's grammar, and ends
each part of it as soon as the grammar allows: the model's own choice would be long noise. A byte is a
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairserve.engine.torch.token_constraint import Grammar, TokenConstraint

_WORD_BITS = 32
_QUOTE, _BACKSLASH = b'"\\'
_ENDS = b'}]",'
"""Tokens that end a part of a JSON value, or lead to its end, in order of preference."""


@dataclass(frozen=True, slots=True)
class ScriptedOutput:
    """An output of given tokens; see :class:`~fairserve.engine.torch.token_constraint.Grammar`.

    Where ``grammar`` does not allow the next token of ``body``, it alone decides from there on.
    """

    head: Sequence[int]
    """First tokens, before those of the grammar."""
    body: Sequence[int] | None
    """Tokens after the head; None: the grammar decides."""
    end_id: int
    vocabulary: int
    grammar: Grammar | None = None
    is_json: bool = False
    """True for a grammar of JSON."""

    def start(self) -> ScriptedTokens:
        """Return the script for one new sequence."""
        return ScriptedTokens(self, self.grammar.start() if self.grammar is not None else None)


class ScriptedTokens:
    """State of one sequence in its script; see ``TokenConstraint``."""

    def __init__(self, script: ScriptedOutput, constraint: TokenConstraint | None) -> None:
        self.problem = ""
        self._script = script
        self._constraint = constraint
        self._follows = script.body is not None
        self._in_string = False
        self._read = 0
        """Tokens after the head that ``_in_string`` is about."""
        self._mask = np.zeros(-(-script.vocabulary // _WORD_BITS), dtype=np.int32)

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """Return the mask of the next token; the next call may overwrite the array."""
        script = self._script
        at = len(output) - len(script.head)
        if at < 0:
            return self._only(script.head[len(output)])
        body = script.body or ()
        token = body[at] if at < len(body) else script.end_id
        if self._constraint is None:
            return self._only(token)
        follows_head = output[len(script.head) :]
        mask = self._constraint.allowed(follows_head)
        self.problem = self._constraint.problem
        if self.problem:
            return mask
        self._follows = self._follows and _has(mask, token)
        if self._follows:
            return self._only(token)
        end = self._nearest_end(mask, follows_head) if script.is_json else None
        return mask if end is None else self._only(end)

    def _nearest_end(self, mask: npt.NDArray[np.int32], output: list[int]) -> int | None:
        """Return the allowed token that is nearest to the end of the JSON; None: no such token."""
        while self._read < len(output):
            token = output[self._read]
            self._read += 2 if self._in_string and token == _BACKSLASH else 1
            self._in_string ^= token == _QUOTE
        ends = (_QUOTE,) if self._in_string else (self._script.end_id, *_ENDS)
        return next((token for token in ends if _has(mask, token)), None)

    def _only(self, token: int) -> npt.NDArray[np.int32]:
        self._mask[:] = 0
        word, bit = divmod(token, _WORD_BITS)
        self._mask.view(np.uint32)[word] = np.uint32(1 << bit)
        return self._mask


def _has(mask: npt.NDArray[np.int32], token: int) -> bool:
    word, bit = divmod(token, _WORD_BITS)
    return bool(int(mask[word]) >> bit & 1)
