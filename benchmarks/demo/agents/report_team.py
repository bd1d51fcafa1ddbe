"""A team that writes a report: a planner, four workers in parallel, a writer.

Each worker reads another section, so the prompts share the team's instructions and little else; the
writer's output is the longest of the demo. The sections are this package's documentation.
"""

from __future__ import annotations

from fairserve.benchmarks.demo.agents.session import AgentRun, Message
from fairserve.benchmarks.demo.documents import package

WORKERS = 4
INSTRUCTION_CHARS = 400
SECTION_CHARS = 700
PLAN_TOKENS, WORKER_TOKENS, REPORT_TOKENS = 40, 48, 80

PROFILE = {
    "stages": [
        {"input_tokens": 120, "system_tokens": 480, "output_tokens": PLAN_TOKENS},
        {"input_tokens": 850, "system_tokens": 480, "output_tokens": WORKER_TOKENS},
        {"input_tokens": 300, "system_tokens": 480, "output_tokens": REPORT_TOKENS},
    ],
    "calls_per_interaction": WORKERS + 2,
}


async def write_report(run: AgentRun) -> None:
    """Plan, work on the sections in parallel, write."""
    corpus = package()
    system = f"You are a team that documents {corpus.name}.\n" + corpus.part(0, INSTRUCTION_CHARS)
    sections = len(corpus.text) // SECTION_CHARS
    first = run.random.randrange(sections)

    def messages(text: str) -> list[Message]:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    plan = await run.ask(
        "planner",
        messages(f"Plan a report about sections {first} to {first + WORKERS - 1}."),
        max_tokens=run.about(PLAN_TOKENS),
        stream=False,
    )
    await run.work()
    drafts = await run.together(
        [
            run.ask(
                f"worker-{index}",
                messages(
                    f"Plan: {plan.text}\nSummarise:\n{corpus.part(first + index, SECTION_CHARS)}"
                ),
                max_tokens=run.about(WORKER_TOKENS),
                parents=[plan],
                stream=True,
            )
            for index in range(WORKERS)
        ]
    )
    await run.work()
    await run.ask(
        "writer",
        messages("Write the report from:\n" + "\n".join(draft.text for draft in drafts)),
        max_tokens=run.about(REPORT_TOKENS),
        parents=drafts,
        stream=True,
        final=True,
    )
