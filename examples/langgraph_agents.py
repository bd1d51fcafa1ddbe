"""A LangGraph: a planner, three researchers in parallel, and a reviewer who sends them back once.

ChatOpenAI makes its own client, so its HTTP client names run and agent, and each call its user. It reads
OPENAI_BASE_URL (http://127.0.0.1:8000/v1) and OPENAI_API_KEY, an app's key.
"""

import operator
import os
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from openai import DefaultHttpxClient, OpenAI

from fairserve_client import agent, current_run, event_hooks, interaction

TOPICS = ["causes", "forecasts", "power stations"]
ROUNDS = 2

model = ChatOpenAI(
    model=os.environ.get("OPENAI_MODEL", "fairserve-demo"),
    max_tokens=32,
    http_client=DefaultHttpxClient(event_hooks=event_hooks()),
)


class State(TypedDict):
    """State that the agents share: texts, and the calls that the next agent has waited for."""

    plan: str
    planned: list[str]
    found: Annotated[list[str], operator.add]
    answered: Annotated[list[str], operator.add]
    rounds: int


class Task(TypedDict):
    """Input of one researcher."""

    topic: str
    plan: str
    planned: list[str]


def ask(text: str) -> str:
    """Make one call of the current agent."""
    return str(model.invoke(text, user=current_run().user).content)


def plan(state: State) -> dict[str, object]:
    """The planner's node."""
    with agent("planner") as planner:
        text = ask("Plan a report on tides.")
    return {"plan": text, "planned": planner.calls, "rounds": 0}


def research(task: Task) -> dict[str, object]:
    """Run one researcher; LangGraph runs them in parallel."""
    with agent("researcher", after=task["planned"]) as researcher:
        text = ask(f"{task['plan']}\n\nWrite a paragraph on the {task['topic']} of tides.")
    return {"found": [text], "answered": researcher.calls}


def review(state: State) -> dict[str, object]:
    """The reviewer's node, which waits for all researchers."""
    with agent("reviewer", after=state["answered"]) as reviewer:
        text = ask("\n\n".join(state["found"]))
    return {"plan": text, "planned": reviewer.calls, "rounds": state["rounds"] + 1}


def send_out(state: State) -> list[Send] | str:
    """To the researchers, all at once, or to the end."""
    if state["rounds"] == ROUNDS:
        return END
    shared = {"plan": state["plan"], "planned": state["planned"]}
    return [Send("research", {"topic": topic, **shared}) for topic in TOPICS]


graph = StateGraph(State)
graph.add_node("plan", plan)
graph.add_node("research", research)
graph.add_node("review", review)
graph.add_edge(START, "plan")
graph.add_conditional_edges("plan", send_out, ["research", END])
graph.add_edge("research", "review")
graph.add_conditional_edges("review", send_out, ["research", END])


def main() -> None:
    """Run the graph and show what the platform knows of it."""
    with OpenAI() as client:
        with interaction(client, user="ann") as run:
            graph.compile().invoke({"found": [], "answered": []})
        record = client.get(f"/interactions/{run.id}", cast_to=dict[str, object])
    print(f"run {record['id']}: {record['state']}, {record['calls']} calls")


if __name__ == "__main__":
    main()
