"""The OpenAI Agents SDK over chat completions: two agents, the second with the first one's answer."""

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
from openai import AsyncOpenAI
from program import MODEL, ONE_LINE, main


async def run(question):
    async with AsyncOpenAI(
        default_headers=ONE_LINE(),
    ) as client:
        model = OpenAIChatCompletionsModel(MODEL, openai_client=client)
        config = RunConfig(tracing_disabled=True)
        writer = Agent("writer", instructions="Write.", model=model)
        critic = Agent("critic", instructions="Criticise.", model=model)
        draft = await Runner.run(writer, question, run_config=config)
        await Runner.run(critic, f"Criticise: {draft.final_output}", run_config=config)


main(run)
