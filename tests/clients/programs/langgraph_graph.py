"""LangGraph: a planner, three researchers in parallel and a reviewer, each with a prompt of its own."""

import operator
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from program import MODEL, ONE_LINE, main


class State(TypedDict):
    question: str
    found: Annotated[list[str], operator.add]


async def run(question):
    model = ChatOpenAI(
        model=MODEL,
        default_headers=ONE_LINE(),
    )

    async def plan(state):
        await model.ainvoke(f"Plan the answer to: {question}")
        return {}

    async def research(task):
        answer = await model.ainvoke(f"Find {task['topic']} for: {question}")
        return {"found": [str(answer.content)]}

    async def review(state):
        await model.ainvoke("Review these:\n" + "\n".join(state["found"]))
        return {}

    graph = StateGraph(State)
    for node in (plan, research, review):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "plan")
    topics = ("causes", "heights", "times")
    graph.add_conditional_edges(
        "plan", lambda _: [Send("research", {"topic": topic}) for topic in topics], ["research"]
    )
    graph.add_edge("research", "review")
    graph.add_edge("review", END)
    await graph.compile().ainvoke({"question": question, "found": []})


main(run)
