"""pydantic-ai: one agent with a tool."""

from openai import AsyncOpenAI
from program import MODEL, ONE_LINE, main
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def tide_table(place: str) -> str:
    """Return the tides of a place."""
    return f"high at noon in {place}"


async def run(question):
    async with AsyncOpenAI(
        default_headers=ONE_LINE(),
    ) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, tools=[tide_table], system_prompt="You know the tides.")
        await agent.run(question)


main(run)
