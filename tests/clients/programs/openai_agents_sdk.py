"""The OpenAI Agents SDK as it comes: one agent with a tool, over the Responses API."""

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from program import MODEL, ONE_LINE, main


@function_tool
def tide_table(place: str) -> str:
    """Return the tides of a place."""
    return f"high at noon in {place}"


async def run(question):
    async with AsyncOpenAI(
        default_headers=ONE_LINE(),
    ) as client:
        model = OpenAIResponsesModel(MODEL, openai_client=client)
        agent = Agent("tides", instructions="You know the tides.", tools=[tide_table], model=model)
        await Runner.run(agent, question, run_config=RunConfig(tracing_disabled=True))


main(run)
