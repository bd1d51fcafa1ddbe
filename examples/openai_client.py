"""A planner, three researchers in parallel and a reviewer who asks one of them again: one run.

The openai package alone. It reads OPENAI_BASE_URL (http://127.0.0.1:8000/v1) and OPENAI_API_KEY, an
app's key.
"""

import asyncio
import os

from openai import AsyncOpenAI

from fairserve_client import Agent, agent, current_run, interaction

MODEL = os.environ.get("OPENAI_MODEL", "fairserve-demo")
TOPICS = ["causes", "forecasts", "power stations"]


async def ask(text: str) -> str:
    """Make one call of the current agent."""
    answer = await current_run().client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=32
    )
    return answer.choices[0].message.content or ""


async def research(topic: str, plan: str, after: list[Agent]) -> tuple[Agent, str]:
    """Return the researcher and its findings, for the agents that wait for them."""
    with agent("researcher", after=after) as researcher:
        return researcher, await ask(f"{plan}\n\nWrite a paragraph on the {topic} of tides.")


@agent("editor")
async def edit(text: str) -> str:
    """Shorten a text. Without ``after`` it follows all calls that have ended."""
    return await ask(f"{text}\n\nShorten this.")


async def main() -> None:
    """Run the program and show what the platform knows of it."""
    async with AsyncOpenAI() as client:
        async with interaction(client, user="ann") as run:
            with run.agent("planner") as planner:
                plan = await ask("Plan a report on tides.")
            found = await asyncio.gather(*(research(topic, plan, [planner]) for topic in TOPICS))
            researchers = [researcher for researcher, _ in found]
            with run.agent("reviewer", after=researchers) as reviewer:
                review = await ask("\n\n".join(text for _, text in found))
            _, again = await research(TOPICS[0], review, [reviewer])
            await edit(again)
        record = await client.get(f"/interactions/{run.id}", cast_to=dict[str, object])
    print(f"run {record['id']}: {record['state']}, {record['calls']} calls")


if __name__ == "__main__":
    asyncio.run(main())
