"""An agent that works on code: each prompt is the last one, its answer, and what a tool returned.

So its context grows with each turn, and is worth keeping while the tool runs.
"""

from __future__ import annotations

from fairserve.benchmarks.demo.agents.session import AgentRun, Answer, Message
from fairserve.benchmarks.demo.documents import library

TURNS = 12
SYSTEM = "You change code with the tools that you have. Say which file to read or to write next."
TASK_CHARS, TOOL_CHARS = 2400, 130
ANSWER_TOKENS = 16
TEMPLATE_TOKENS = 20
"""Tokens around two messages."""

PROFILE = {
    "stages": [
        {
            "input_tokens": TASK_CHARS + turn * (ANSWER_TOKENS + TOOL_CHARS + TEMPLATE_TOKENS),
            "system_tokens": len(SYSTEM) + TEMPLATE_TOKENS,
            "output_tokens": ANSWER_TOKENS,
        }
        for turn in range(TURNS)
    ],
    "calls_per_interaction": TURNS,
}


async def work_on_code(run: AgentRun) -> None:
    """Read the task, then call a tool after each answer."""
    task = library().part(run.plan.number, TASK_CHARS)
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task},
    ]
    parents: list[Answer] = []
    for turn in range(TURNS):
        answer = await run.ask(
            "coder",
            messages,
            max_tokens=ANSWER_TOKENS,
            parents=parents,
            stream=True,
            final=turn == TURNS - 1,
        )
        found = library().part(run.random.randrange(10_000), TOOL_CHARS)
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": found},
        ]
        parents = [answer]
        await run.work(0.3, 0.7)
