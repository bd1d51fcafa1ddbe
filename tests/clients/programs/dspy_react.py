"""DSPy: a ReAct agent with a tool, whose prompts repeat its trajectory as text."""

import dspy
from program import KEY, MODEL, ONE_LINE, URL, main


def tide_table(place: str) -> str:
    """Return the tides of a place."""
    return f"high at noon in {place}"


async def run(question):
    model = dspy.LM(
        f"openai/{MODEL}",
        api_base=URL,
        api_key=KEY,
        cache=False,
        extra_headers=ONE_LINE(),
    )
    agent = dspy.ReAct("question -> answer", tools=[tide_table])
    with dspy.context(lm=model):
        await agent.acall(question=question)


main(run)
