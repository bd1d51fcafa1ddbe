"""JSON mode: holds an output to a JSON schema, token by token. Needs llguidance (extra ``json``).

llguidance compiles a schema to a grammar over the model's tokens and tells after each token which
ones may follow; the end token is allowed only where the JSON is complete, and nothing else then. So
an output that ends by itself is valid, and one that ``max_tokens`` or a stop string cuts is the
beginning of a valid one. What the library does not know of JSON schema is an error, never ignored,
and it fetches nothing. Between two parts of the JSON at most a space may stand, or a line break and
an indent: a model that likes spaces would go on for ever.

Imported only where somebody asks for it. Weakness: the mask of each such sequence is computed in
the engine's thread, some 50 microseconds a token for ordinary schemas, more for intricate ones.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

_WHITE_SPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,40}"
"""A space, or a line break with an indent."""
_KEPT_GRAMMARS = 32
"""Compiled schemas that are kept; a caller usually comes back with the same one."""
_LEXER_STATES = 20_000
"""Bounds the memory of one grammar at some 40 MB, for schemas made to be large."""
_WORD_BITS = 32


class JsonMode:
    """Compiles schemas for one tokenizer. Making it takes up to seconds; it is thread-safe."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Collection[int]) -> None:
        """Raises ValueError for a tokenizer that has no token table, or no end token."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not end_ids:
            raise ValueError("this model's tokenizer has no token table, or the model no end token")
        self._tokenizer = llguidance.LLTokenizer(
            backend.to_str(), n_vocab=vocabulary, eos_token=sorted(end_ids)
        )
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=_LEXER_STATES, verbose_errors=False
        )
        self.compile = lru_cache(_KEPT_GRAMMARS)(self._compile)
        """A JSON schema as text to a grammar. Raises ValueError saying what is wrong with it."""

    def _compile(self, schema: str) -> JsonGrammar:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_pattern": _WHITE_SPACE}
        )
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return JsonGrammar(matcher, self._tokenizer.vocab_size)


class JsonGrammar:
    """One compiled schema; see ``Grammar``."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._words = -(-vocabulary // _WORD_BITS)

    def start(self) -> JsonConstraint:
        """A constraint for one new sequence."""
        return JsonConstraint(self._matcher.deep_copy(), self._words)


class JsonConstraint:
    """One sequence's place in the grammar; see ``TokenConstraint``."""

    def __init__(self, matcher: llguidance.LLMatcher, words: int) -> None:
        self.problem = ""
        self._matcher = matcher
        self._mask = np.zeros(words, dtype=np.int32)
        self._followed = 0
        """Output tokens that the matcher has seen."""

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """The tokens that may follow; the array is overwritten by the next call."""
        if not self.problem:
            self._matcher.consume_tokens(output[self._followed :])
            self._followed = len(output)
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            if self._matcher.is_error():
                self.problem = f"the JSON schema cannot be followed: {self._matcher.get_error()}"
                self._mask[:] = 0
        return self._mask
