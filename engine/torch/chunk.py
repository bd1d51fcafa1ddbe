"""What one sequence contributes to a forward step."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A sequence and how many of its uncomputed tokens are computed in this step."""

    sequence: Sequence
    tokens: int

    @property
    def is_decode(self) -> bool:
        """A single token with a context: it attends in a group."""
        return self.tokens == 1 and self.sequence.computed_tokens > 0

    @property
    def gives_token(self) -> bool:
        """Whether the step ends with the logits of the sequence's next token."""
        return self.tokens == self.sequence.uncomputed_tokens
