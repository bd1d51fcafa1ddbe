"""A team that answers a question about a long document: retriever, three answerers, editor.

All five calls begin with the same document, and so do other users' calls about it: prompts are
long, answers short, and a cached prefix saves much. The users of the app read the same few
documents; the flooding script reads another one in every run.
"""

from __future__ import annotations

from fairserve.benchmarks.demo.agents.session import AgentRun, Message
from fairserve.benchmarks.demo.documents import library
from fairserve.benchmarks.demo.workload import FLOODER

DOCUMENT_CHARS = 2600
SHARED_DOCUMENTS = 4
FIRST_FLOOD_DOCUMENT = 20
ANSWERERS = 3
ASPECTS = ("What is it for?", "What must the caller take care of?", "What can go wrong?")
RETRIEVER_TOKENS, ANSWER_TOKENS, EDITOR_TOKENS = 24, 28, 40

PROFILE = {
    "stages": [
        {"input_tokens": 110, "system_tokens": 2700, "output_tokens": RETRIEVER_TOKENS},
        {"input_tokens": 160, "system_tokens": 2700, "output_tokens": ANSWER_TOKENS},
        {"input_tokens": 260, "system_tokens": 2700, "output_tokens": EDITOR_TOKENS},
    ],
    "calls_per_interaction": ANSWERERS + 2,
}


async def answer_question(run: AgentRun) -> None:
    """Find the passages, examine them from three sides in parallel, write one answer."""
    if run.plan.group == FLOODER:
        number = FIRST_FLOOD_DOCUMENT + run.plan.number
    else:
        number = run.random.randrange(SHARED_DOCUMENTS)
    system = (
        f"You answer questions about this document.\n\n{library().part(number, DOCUMENT_CHARS)}"
    )
    topic = f"Question {run.random.randrange(1000)} about document {number}"

    def messages(text: str) -> list[Message]:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    found = await run.ask(
        "retriever",
        messages(f"{topic}: which passages matter?"),
        max_tokens=run.about(RETRIEVER_TOKENS),
        stream=False,
    )
    await run.work()
    answers = await run.together(
        [
            run.ask(
                f"answerer-{index}",
                messages(f"{topic}: {aspect}\nPassages: {found.text}"),
                max_tokens=run.about(ANSWER_TOKENS),
                parents=[found],
                stream=True,
            )
            for index, aspect in enumerate(ASPECTS[:ANSWERERS])
        ]
    )
    await run.work()
    await run.ask(
        "editor",
        messages(f"{topic}: one short answer from:\n" + "\n".join(a.text for a in answers)),
        max_tokens=run.about(EDITOR_TOKENS),
        parents=answers,
        stream=True,
        final=True,
    )
