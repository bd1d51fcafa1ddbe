"""LangChain's ``create_agent``: one agent with a tool."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from program import MODEL, ONE_LINE, main


def tide_table(place: str) -> str:
    """Return the tides of a place."""
    return f"high at noon in {place}"


async def run(question):
    model = ChatOpenAI(
        model=MODEL,
        default_headers=ONE_LINE(),
    )
    agent = create_agent(model, tools=[tide_table], system_prompt="You know the tides.")
    await agent.ainvoke({"messages": [{"role": "user", "content": question}]})


main(run)
