"""JSON mode: constrains an output to a JSON schema, token by token. Needs llguidance (extra ``json``).

Regular expressions, lists of choices and grammars (Lark or GBNF) are constrained in the same way.

llguidance compiles a schema to a grammar over the model's tokens and lists the allowed tokens after
each one; the end token is allowed exactly when the JSON is complete. So an output that ends by
itself is valid, and one cut by ``max_tokens`` or a stop string is a prefix of a valid one. A
feature of JSON schema that the library lacks is an error, never ignored, and nothing is fetched.
Between two parts of the JSON at most a space is allowed, or a line break and an indent: otherwise a
model that prefers spaces would never end.

The module is imported on first use. The mask of each such sequence is computed in the engine's
thread, about 50 microseconds per token for ordinary schemas. A schema that compiles quickly can
still have costly masks, so each sequence has a budget of processor time and fails when it is
exhausted.

Weakness: compilation has no time limit (intersections of patterns can take minutes). Schemas of
clients are first compiled in a process with limits, see ``schema_checks``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from fairserve.engine.torch.output_format import FormatKind

_WHITE_SPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,40}"
"""Pattern of whitespace: a space, or a line break with an indent."""
_LEXER_STATES = 20_000
"""Maximum size of one grammar, about 40 MB of memory, against schemas built to be large."""
_WORD_BITS = 32
MASK_BUDGET_S = 0.1
"""Processor time of one sequence's masks after which the mean cost of a mask is limited."""
MASK_MEAN_S = 0.001
"""Maximum mean processor time of a mask from then on."""
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Tokens of a model, in a form readable by llguidance and by another process."""

    tokenizer: str
    """Fast tokenizer as JSON."""
    vocabulary: int
    end_ids: tuple[int, ...]


def token_table(tokenizer: Any, vocabulary: int, end_ids: Collection[int]) -> TokenTable:
    """Return the table of a transformers tokenizer.

    Raises ValueError for a tokenizer that has no token table, or no end token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not end_ids:
        raise ValueError("this model's tokenizer has no token table, or the model no end token")
    return TokenTable(backend.to_str(), vocabulary, tuple(sorted(end_ids)))


class JsonMode:
    """Compiler of schemas for one tokenizer. Creation takes up to seconds; it is thread-safe."""

    def __init__(self, table: TokenTable) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            table.tokenizer, n_vocab=table.vocabulary, eos_token=list(table.end_ids)
        )
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=_LEXER_STATES, verbose_errors=False
        )

    def compile(self, text: str, kind: FormatKind = "json") -> JsonGrammar:
        """Compile a JSON schema or another format. Raises ValueError with the reason.

        The library releases the interpreter's lock while it compiles.
        """
        if kind == "json":
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_pattern": _WHITE_SPACE}
            )
        else:
            try:
                grammar = llguidance.grammar_from(kind, text)
            except ValueError as error:
                raise ValueError(_shortened(str(error))) from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(_shortened(matcher.get_error()))
        compiled = JsonGrammar(matcher, self._tokenizer.vocab_size)
        first = compiled.start()
        first.allowed([])
        if first.has_no_output:
            hint = "; a $ref may lead back to its own schema only through a property or an item"
            raise ValueError("no output fits it" + (hint if kind == "json" else ""))
        if first.problem:
            raise ValueError(first.problem)
        return compiled


class JsonGrammar:
    """A compiled schema; see :class:`~fairserve.engine.torch.token_constraint.Grammar`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._words = -(-vocabulary // _WORD_BITS)

    def start(self, cpu_clock: Callable[[], float] = time.thread_time) -> JsonConstraint:
        """Return a constraint for one new sequence. ``cpu_clock``: processor time of its thread."""
        return JsonConstraint(self._matcher.deep_copy(), self._words, cpu_clock)


class JsonConstraint:
    """State of one sequence in the grammar; see ``TokenConstraint``."""

    def __init__(
        self, matcher: llguidance.LLMatcher, words: int, cpu_clock: Callable[[], float]
    ) -> None:
        self.problem = ""
        self._matcher = matcher
        self._mask = np.zeros(words, dtype=np.int32)
        self._cpu_clock = cpu_clock
        self._spent_s = 0.0
        self._followed = 0
        """Number of output tokens consumed by the matcher."""

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """Return the mask of the tokens that may follow; the next call overwrites the array."""
        if not self.problem:
            began_s = self._cpu_clock()
            self._matcher.consume_tokens(output[self._followed :])
            self._followed = len(output)
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._spent_s += self._cpu_clock() - began_s
            self.problem = self._problem()
            if self.problem:
                self._mask[:] = 0
        return self._mask

    @property
    def has_no_output(self) -> bool:
        """Return whether the grammar allows no further token."""
        return "NoExtension" in self._matcher.get_error()

    def _problem(self) -> str:
        if self._matcher.is_error():
            return (
                f"the output's format cannot be followed: {_shortened(self._matcher.get_error())}"
            )
        if self._spent_s > MASK_BUDGET_S + MASK_MEAN_S * self._followed:
            return (
                "the output's format is too costly to follow: its masks took "
                f"{self._spent_s * 1e3:.0f} ms of processor time for {self._followed} tokens; "
                "simplify its patterns, or lower the number of its properties"
            )
        return ""


def _shortened(reason: str) -> str:
    """Return the library's message on one line, shortened and without its marker."""
    text = " ".join(reason.replace("<non-verbose/>", "").split())
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]} ..."
