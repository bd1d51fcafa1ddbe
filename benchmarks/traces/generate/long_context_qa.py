"""Questions on long documents (the DLPM paper's section 6.1, Tables 2 and 3).

A run is one question, a single call: system prompt, document, question. A client asks
``questions_per_document`` questions about a document, alternating with its other open documents,
then opens a new one. So the reuse of a document is spread among other clients' traffic, which tests
locality.

Published: a mean prompt of 21,449 tokens and a mean output of 15. The paper does not state how many
questions a document gets, how many are open, or how lengths vary: chosen.

Weakness: no document is shared between clients, and none is reused after its last question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairserve.benchmarks.traces.generate.block_ids import BlockIds, IdPrefix
from fairserve.benchmarks.traces.generate.programs import (
    Calls,
    call_on,
)
from fairserve.benchmarks.traces.generate.token_lengths import TokenLengths


@dataclass(frozen=True, slots=True)
class LongContextQa:
    """Program of questions on documents; lengths in tokens."""

    prompt_tokens: float = 21_449.0
    """Mean prompt with ``document_factor`` 1 (Table 2)."""
    output_tokens: float = 15.0
    question_tokens: int = 48
    """Mean length of a question; chosen."""
    system_tokens: int = 64
    """System prompt of all questions of an owner; chosen."""
    document_factor: float = 1.0
    """Factor on document lengths; 2 in S2 of Table 3."""
    questions_per_document: int = 8
    """Questions on each document; chosen."""
    open_documents: int = 12
    """Number of open documents of a client, which get questions in random order; chosen so that the
    documents of three clients exceed the cache of one worker."""
    cv: float = 0.25
    """Coefficient of variation of documents, questions and outputs; chosen."""
    app: str = "long-context-qa"

    @property
    def document_tokens(self) -> float:
        """Return the mean length of a document at ``document_factor`` 1."""
        return self.prompt_tokens - self.system_tokens - self.question_tokens

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of questions, each a run of one call."""
        system = blocks.extend(blocks.empty, ("qa-system", owner), self.system_tokens)
        documents = TokenLengths(self.document_tokens * self.document_factor, self.cv)
        questions = TokenLengths(self.question_tokens, self.cv)
        outputs = TokenLengths(self.output_tokens, self.cv)
        opened = 0
        asked: list[tuple[IdPrefix, int]] = []
        while True:
            while len(asked) < self.open_documents:
                content = ("document", client, opened)
                asked.append((blocks.extend(system, content, documents.draw(rng)), 0))
                opened += 1
            which = int(rng.integers(len(asked)))
            document, number = asked[which]
            prompt = blocks.extend(document, ("question", number), questions.draw(rng))
            yield (call_on(0, "answer", (), prompt, self.system_tokens, outputs.draw(rng)),)
            if number + 1 < self.questions_per_document:
                asked[which] = (document, number + 1)
            else:
                del asked[which]
