"""CrewAI: a crew of a researcher and a writer with one task each."""

from crewai import LLM, Agent, Crew, Task
from program import KEY, MODEL, ONE_LINE, URL, main


async def run(question):
    model = LLM(
        model=f"openai/{MODEL}",
        base_url=URL,
        api_key=KEY,
        default_headers=ONE_LINE(),
    )
    agents = [
        Agent(role=role, goal=f"{role} well", backstory="An expert.", llm=model)
        for role in ("researcher", "writer")
    ]
    tasks = [
        Task(description=f"{what}: {question}", expected_output="A text.", agent=agent)
        for what, agent in zip(("Find the facts", "Write the report"), agents, strict=True)
    ]
    await Crew(agents=agents, tasks=tasks).kickoff_async()


main(run)
