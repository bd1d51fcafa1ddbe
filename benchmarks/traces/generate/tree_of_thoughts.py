"""Tree-of-Thoughts on grade-school mathematics (the DLPM paper's section 6.1, Tables 2 and 3).

Every node of the tree is a call; the root, the question itself, is not. Height 4 with 2 branches is
2 + 4 + 8 + 16 = 30 calls, with 4 branches 340, the paper's numbers. A child waits for its parent
only, and its prompt is the parent's prompt, the parent's output and an instruction, so all
descendants of a call share its prompt and output. Siblings have the same prompt and differ by
sampling.

Published: a mean prompt of 546 tokens and a mean output of 256. Both cannot hold if every output of
256 tokens stays in the context: at the mean depth of 2.27 that alone is 580. So thoughts are
shorter here (``thought_tokens``, chosen) and the answers at the leaves longer, such that both means
hold over a tree of ``reference_branches``; question and answer lengths follow from them. With the
defaults a question has 79 tokens, an answer 340.

Weakness: no branch is cut or revisited; every tree of a client has the same shape.
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
from fairserve.engine.simulated.traces.model import TraceCall


@dataclass(frozen=True, slots=True)
class TreeOfThoughts:
    """Program of a tree; lengths in tokens."""

    branches: int = 2
    height: int = 4
    prompt_tokens: float = 546.0
    """Mean prompt over the calls of a tree of ``reference_branches``, at factor 1 (Table 2)."""
    output_tokens: float = 256.0
    """Mean output over the calls of a tree of ``reference_branches`` (Table 2)."""
    thought_tokens: float = 160.0
    """Mean output above the leaves; chosen."""
    instruction_tokens: int = 32
    """Instruction after each output in a child's prompt, in tokens; chosen."""
    system_tokens: int = 32
    """First instruction, equal for all trees of an owner, in tokens; chosen."""
    question_factor: float = 1.0
    """Factor on question lengths; 10 in S2 of Table 3."""
    reference_branches: int = 2
    cv: float = 0.25
    """Coefficient of variation of questions and outputs; chosen."""
    app: str = "tree-of-thoughts"

    @property
    def question_tokens(self) -> float:
        """Return the mean length of a question at ``question_factor`` 1."""
        calls = _calls_of_levels(self.reference_branches, self.height)
        above = sum(level * count for level, count in enumerate(calls)) / sum(calls)
        grown = above * (self.thought_tokens + self.instruction_tokens)
        return self.prompt_tokens - self.system_tokens - grown

    @property
    def answer_tokens(self) -> float:
        """Return the mean output of a leaf."""
        *inner, leaves = _calls_of_levels(self.reference_branches, self.height)
        total = self.output_tokens * (sum(inner) + leaves)
        return (total - self.thought_tokens * sum(inner)) / leaves

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of trees, each of a new question; calls in order of level."""
        system = blocks.extend(blocks.empty, ("tot-system", owner), self.system_tokens)
        questions = TokenLengths(self.question_tokens * self.question_factor, self.cv)
        thoughts = TokenLengths(self.thought_tokens, self.cv)
        answers = TokenLengths(self.answer_tokens, self.cv)
        tree = 0
        while True:
            question = ("tot-question", client, tree)
            # A future node: its dependency (none at the first level) and its prompt.
            asked = blocks.extend(system, question, questions.draw(rng))
            level: list[tuple[tuple[int, ...], IdPrefix]] = [((), asked)]
            calls: list[TraceCall] = []
            for depth in range(1, self.height + 1):
                below: list[tuple[tuple[int, ...], IdPrefix]] = []
                outputs = answers if depth == self.height else thoughts
                for deps, prompt in level:
                    for _ in range(self.branches):
                        number, output = len(calls), outputs.draw(rng)
                        agent = "answer" if depth == self.height else f"thought-{depth}"
                        calls.append(
                            call_on(number, agent, deps, prompt, self.system_tokens, output)
                        )
                        if depth < self.height:
                            answered = blocks.extend(prompt, ("output", number), output)
                            asked = blocks.extend(answered, "instruction", self.instruction_tokens)
                            below.append(((number,), asked))
                level = below
            yield tuple(calls)
            tree += 1


def _calls_of_levels(branches: int, height: int) -> list[int]:
    return [branches**level for level in range(1, height + 1)]
