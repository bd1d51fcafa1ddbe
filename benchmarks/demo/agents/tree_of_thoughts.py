"""A solver that searches a tree of thoughts: propose, rate, keep the best, go deeper.

A call's prompt consists of the app's examples, the problem, and the path of thoughts so far, so the
calls of a tree share ever longer prefixes and those of all trees the first part. Ratings are
requested without streaming and are a few tokens long. The model's text is noise, and so are the
scores of thoughts, but the tree that is searched is real.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.benchmarks.demo.agents.session import AgentRun, Answer, Message
from fairserve.benchmarks.demo.documents import library

LEVELS = 2
BRANCHES = 2
KEPT = 2
EXAMPLE_CHARS = 600
PROBLEM_CHARS = 240
FIRST_PROBLEM = 3000
THOUGHT_TOKENS, VALUE_TOKENS, ANSWER_TOKENS = 40, 6, 64

PROFILE = {
    "stages": [
        {"input_tokens": 320, "system_tokens": 670, "output_tokens": THOUGHT_TOKENS},
        {"input_tokens": 370, "system_tokens": 670, "output_tokens": THOUGHT_TOKENS},
        {"input_tokens": 420, "system_tokens": 670, "output_tokens": VALUE_TOKENS},
        {"input_tokens": 420, "system_tokens": 670, "output_tokens": THOUGHT_TOKENS},
        {"input_tokens": 460, "system_tokens": 670, "output_tokens": VALUE_TOKENS},
        {"input_tokens": 460, "system_tokens": 670, "output_tokens": ANSWER_TOKENS},
    ],
    "calls_per_interaction": 14,
}


@dataclass(frozen=True, slots=True)
class _Thought:
    """A node of the tree: the text of its path, and its parent calls."""

    path: str
    last: Answer
    score: int = 0


async def solve(run: AgentRun) -> None:
    """Restate the problem, search the tree level by level, answer from the best path."""
    system = "You solve puzzles step by step, like this:\n\n" + library().part(0, EXAMPLE_CHARS)
    problem = library().part(FIRST_PROBLEM + run.random.randrange(400), PROBLEM_CHARS)

    def messages(path: str, task: str) -> list[Message]:
        user = f"Puzzle:\n{problem}\n{path}\n{task}"
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    async def propose(parent: _Thought, branch: int) -> Answer:
        return await run.ask(
            "proposer",
            messages(parent.path, f"Propose next step {branch}."),
            max_tokens=lengths.pop(),
            parents=[parent.last],
            stream=True,
        )

    async def value(thought: _Thought) -> Answer:
        return await run.ask(
            "valuer",
            messages(thought.path, "How promising is this?"),
            max_tokens=VALUE_TOKENS,
            parents=[thought.last],
            stream=False,
        )

    first = await run.ask(
        "reader",
        messages("", "Restate the puzzle."),
        max_tokens=run.about(THOUGHT_TOKENS),
        stream=False,
    )
    kept = [_Thought(f"Restated: {first.text}", first)]
    for _ in range(LEVELS):
        await run.work()
        pairs = [(parent, branch) for parent in kept for branch in range(BRANCHES)]
        lengths = [run.about(THOUGHT_TOKENS) for _ in pairs]
        proposed = await run.together([propose(parent, branch) for parent, branch in pairs])
        thoughts = [
            _Thought(f"{parent.path}\nStep: {answer.text}", answer)
            for (parent, _), answer in zip(pairs, proposed, strict=True)
        ]
        values = await run.together([value(thought) for thought in thoughts])
        scored = [
            _Thought(thought.path, answer, _score(answer.text))
            for thought, answer in zip(thoughts, values, strict=True)
        ]
        kept = sorted(scored, key=lambda thought: -thought.score)[:KEPT]
    await run.work()
    await run.ask(
        "solver",
        messages(kept[0].path, "Give the solution."),
        max_tokens=run.about(ANSWER_TOKENS),
        parents=[thought.last for thought in kept],
        stream=True,
        final=True,
    )


def _score(text: str) -> int:
    """Return a score read from a noise answer: its number of vowels."""
    return sum(text.count(vowel) for vowel in "aeiou")
