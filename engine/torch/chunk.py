"""The part of one sequence in a forward step."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A sequence and the number of its tokens that this step computes."""

    sequence: Sequence
    tokens: int

    @property
    def is_decode(self) -> bool:
        """Return whether this is a single token with a context, which attends in a group."""
        return self.tokens == 1 and self.sequence.computed_tokens > 0

    @property
    def gives_token(self) -> bool:
        """Return whether the step ends with the logits of the sequence's next token."""
        return self.tokens == self.sequence.uncomputed_tokens
