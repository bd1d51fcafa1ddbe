"""smolagents: a tool-calling agent."""

import asyncio

from program import KEY, MODEL, ONE_LINE, URL, main
from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def tide_table(place: str) -> str:
    """Return the tides of a place.

    Args:
        place: Name of the place.
    """
    return f"high at noon in {place}"


async def run(question):
    model = OpenAIModel(
        model_id=MODEL,
        api_base=URL,
        api_key=KEY,
        client_kwargs={"default_headers": ONE_LINE()},
    )
    agent = ToolCallingAgent(tools=[tide_table], model=model, verbosity_level=0)
    await asyncio.to_thread(agent.run, question)


main(run)
