"""LLM-as-a-judge by branch, solve and merge (the DLPM paper's section 6.1, Tables 2 and 3).

An article is judged in several dimensions by parallel calls that share everything up to the end of
the article; a last call reads the article and all judgements and merges them. So 2 dimensions are 3
calls, 16 are 17. The paper names the technique but not the number of calls; branching is taken as
part of the program (the dimensions are given), without a separate call.

Published: a mean prompt of 2,701 tokens and a mean output of 256; the article's length follows from
the former for a judge of ``reference_dimensions``.

Weakness: each article is judged once, so only the calls of a run share anything, and the runs of an
owner the few tokens of the system prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairserve.benchmarks.traces.generate.block_ids import BlockIds
from fairserve.benchmarks.traces.generate.programs import (
    Calls,
    call_on,
)
from fairserve.benchmarks.traces.generate.token_lengths import TokenLengths


@dataclass(frozen=True, slots=True)
class Judge:
    """Program of a judge; lengths in tokens."""

    dimensions: int = 2
    prompt_tokens: float = 2701.0
    """Mean over the calls of a run of ``reference_dimensions``, without extra tokens (Table 2)."""
    output_tokens: float = 256.0
    dimension_tokens: int = 48
    """Instruction of a dimension, and of the merge; chosen."""
    system_tokens: int = 64
    """System prompt of all runs of an owner; chosen."""
    extra_tokens: int = 0
    """Text before each article; 600 in S2 of Table 3. Equal for all runs of an owner; chosen."""
    reference_dimensions: int = 2
    cv: float = 0.25
    """Coefficient of variation of articles and outputs; chosen."""
    app: str = "judge"

    @property
    def article_tokens(self) -> float:
        """Return the mean length of an article."""
        merged = self.reference_dimensions * self.output_tokens / (self.reference_dimensions + 1)
        return self.prompt_tokens - self.system_tokens - self.dimension_tokens - merged

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of runs, each on a new article; the merging call is the last."""
        system = blocks.extend(blocks.empty, ("judge-system", owner), self.system_tokens)
        preamble = blocks.extend(system, ("judge-extra", owner), self.extra_tokens)
        articles = TokenLengths(self.article_tokens, self.cv)
        outputs = TokenLengths(self.output_tokens, self.cv)
        run = 0
        while True:
            article = blocks.extend(preamble, ("article", client, run), articles.draw(rng))
            judged = [outputs.draw(rng) for _ in range(self.dimensions)]
            calls = []
            for dimension, output in enumerate(judged):
                prompt = blocks.extend(article, ("dimension", dimension), self.dimension_tokens)
                calls.append(call_on(dimension, "judge", (), prompt, self.system_tokens, output))
            read = blocks.extend(article, "judgements", sum(judged))
            prompt = blocks.extend(read, "merge", self.dimension_tokens)
            solved = tuple(range(self.dimensions))
            calls.append(
                call_on(
                    self.dimensions, "merge", solved, prompt, self.system_tokens, outputs.draw(rng)
                )
            )
            yield tuple(calls)
            run += 1
