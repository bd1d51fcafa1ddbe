"""The OpenAI Agents SDK: a planner, three researchers in parallel, a reviewer with a typed verdict.

The SDK takes the run's client, which reads OPENAI_BASE_URL (http://127.0.0.1:8000/v1) and
OPENAI_API_KEY, an app's key.
"""

import asyncio
import os
from typing import Any, Literal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from openai import AsyncOpenAI
from pydantic import BaseModel

from fairserve_client import After, agent, interaction

MODEL = os.environ.get("OPENAI_MODEL", "fairserve-demo")
TOPICS = ["causes", "forecasts", "power stations"]
CONFIG = RunConfig(tracing_disabled=True)  # the SDK would send its traces to OpenAI


class Verdict(BaseModel):
    """The reviewer's answer."""

    verdict: Literal["publish", "revise"]


async def main() -> None:
    """Run the program and show what the platform knows of it."""
    async with AsyncOpenAI() as client:
        async with interaction(client, user="ann") as run:
            model = OpenAIChatCompletionsModel(model=MODEL, openai_client=run.client)
            short, longer = ModelSettings(max_tokens=32), ModelSettings(max_tokens=256)
            planner = Agent(name="planner", model=model, model_settings=short)
            researcher = Agent(name="researcher", model=model, model_settings=short)
            reviewer = Agent(
                name="reviewer", model=model, model_settings=longer, output_type=Verdict
            )

            async def work(who: Agent, text: str, after: After | None = None) -> tuple[Any, Any]:
                with agent(who.name, after=after) as working:
                    result = await Runner.run(who, text, run_config=CONFIG)
                return result.final_output, working

            plan, planning = await work(planner, "Plan a report on tides.")
            tasks = [f"{plan}\n\nWrite a paragraph on the {topic} of tides." for topic in TOPICS]
            found = await asyncio.gather(*(work(researcher, task, [planning]) for task in tasks))
            text = "\n\n".join(text for text, _ in found)
            review, _ = await work(reviewer, text, [working for _, working in found])
            assert isinstance(review, Verdict)
        record = await client.get(f"/interactions/{run.id}", cast_to=dict[str, object])
    print(f"run {record['id']}: {record['state']}, {record['calls']} calls")


if __name__ == "__main__":
    asyncio.run(main())
