"""Agents that call tools work with the demo model, over the shipped server and a real engine."""

import asyncio
import json
import os
from typing import Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel
from torch_worker import torch_server

MODEL = "fairserve-demo"
QUESTION = "What is the weather in Paris today?"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 2, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Report the weather.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = {"city": "Paris", "unit": "celsius", "days": 2}
ASKED = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with torch_server(tmp_path_factory.mktemp("server") / "data", "demo") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    key = server.new_app(name="demo")["api_key"]
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120) as client:
        yield client


def chat(client, messages=ASKED, **more):
    return client.chat.completions.create(model=MODEL, user="ann", messages=messages, **more)


def test_a_text_ends_by_itself_and_is_always_the_same(client):
    first, second = (chat(client, n=2, temperature=1.5) for _ in range(2))
    texts = {choice.message.content for choice in (*first.choices, *second.choices)}
    (text,) = texts
    assert QUESTION in text
    assert {choice.finish_reason for choice in first.choices} == {"stop"}
    # The end of each output is a token, too.
    assert first.usage.completion_tokens == 2 * (len(text) + 1)
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_limits_and_stops_end_a_text(client):
    (cut,) = chat(client, max_tokens=9).choices
    assert (cut.finish_reason, cut.message.content) == ("length", "You wrote")
    (stopped,) = chat(client, stop=["weather"]).choices
    assert (stopped.finish_reason, stopped.message.content) == ("stop", 'You wrote: "What is the ')
    (logged,) = chat(client, max_tokens=3, logprobs=True, top_logprobs=2).choices
    assert [each.token for each in logged.logprobs.content] == ["Y", "o", "u"]
    long = chat(client, max_tokens=400, extra_body={"ignore_eos": True})
    assert long.usage.completion_tokens == 400
    with pytest.raises(BadRequestError, match="bad_words: the demo model follows a script"):
        chat(client, extra_body={"bad_words": ["weather"]})


def test_a_tool_is_called_once_and_its_result_mentioned(client):
    asked = chat(client, tools=TOOLS)
    (choice,) = asked.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    answered = chat(client, [*ASKED, choice.message, result], tools=TOOLS)
    (final,) = answered.choices
    assert final.finish_reason == "stop"
    assert final.message.content == "get_weather answered: sunny, 21 degrees"
    # The prompt repeats the first one and the call as the model wrote it, up to whole pages of 16.
    known = asked.usage.prompt_tokens + asked.usage.completion_tokens - 1
    assert answered.usage.prompt_tokens_details.cached_tokens >= known // 16 * 16 - 16


def test_a_streamed_call_is_the_same(client):
    whole = chat(client, tools=TOOLS).choices[0].message.tool_calls[0]
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=TOOLS) as stream:
        final = stream.get_final_completion().choices[0]
    (call,) = final.message.tool_calls
    assert final.finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == (
        whole.function.name,
        whole.function.arguments,
    )


def test_a_call_that_is_cut_is_incomplete(client):
    (name,) = chat(client, tools=TOOLS, max_tokens=5).choices
    assert (name.finish_reason, name.message.tool_calls) == ("length", None)
    (cut,) = chat(client, tools=TOOLS, max_tokens=20).choices
    assert cut.finish_reason == "length"
    assert cut.message.tool_calls[0].function.arguments == '{"city":'


def test_arguments_of_any_schema_follow_its_grammar(client):
    parameters = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "n": {"type": "integer"},
        },
        "required": ["code", "n"],
    }
    function = {"name": "book", "parameters": parameters}
    choice = {"type": "function", "function": {"name": "book"}}
    tools = [*TOOLS, {"type": "function", "function": function}]
    (found,) = chat(client, tools=tools, tool_choice=choice).choices
    (call,) = found.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert found.finish_reason == "tool_calls"
    assert arguments.keys() == {"code", "n"}
    assert len(arguments["code"]) == 3
    assert arguments["code"].isupper()


def test_json_fits_its_schema(client):
    class Verdict(BaseModel):
        verdict: Literal["publish", "revise"]
        reason: str

    parsed = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Verdict)
    assert parsed.choices[0].message.parsed == Verdict(verdict="publish", reason="Paris")
    (found,) = chat(client, response_format={"type": "json_object"}).choices
    assert QUESTION in json.loads(found.message.content)["answer"]


def test_the_responses_api_calls_tools(client):
    tools = [{"type": "function", "strict": False, **FUNCTION}]
    asked = client.responses.create(model=MODEL, input=QUESTION, tools=tools)
    (call,) = asked.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", ARGUMENTS)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    final = client.responses.create(
        model=MODEL, input=[output], previous_response_id=asked.id, tools=tools
    )
    assert (final.status, final.output_text) == ("completed", "get_weather answered: sunny")


def needs(package):
    """Skip a test without a package; fail it where all of them must be installed."""
    if os.environ.get("CI") == "true":
        __import__(package)
    return pytest.importorskip(package)


def test_an_agent_of_langgraph_uses_its_tool(server, monkeypatch):
    needs("langgraph.prebuilt")
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    key = server.new_app(name="langgraph")["api_key"]
    asked = []

    @tool
    def get_weather(city: str) -> str:
        """Report the weather of a city."""
        asked.append(city)
        return "sunny, 21 degrees"

    model = ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key=key)
    bound = model.bind_tools([get_weather])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    ended = graph.compile().invoke({"messages": [("user", QUESTION)]})
    assert asked == ["Paris"]
    assert ended["messages"][-1].content == "get_weather answered: sunny, 21 degrees"


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_an_agent_of_the_agents_sdk_uses_its_tool(server, protocol):
    needs("agents")
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        function_tool,
    )
    from openai import AsyncOpenAI

    key = server.new_app(name=f"agents-{protocol}")["api_key"]
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Report the weather of a city."""
        asked.append(city)
        return "sunny, 21 degrees"

    async def run():
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
            kind = OpenAIChatCompletionsModel if protocol == "chat" else OpenAIResponsesModel
            model = kind(model=MODEL, openai_client=client)
            agent = Agent(name="guide", instructions="Help.", model=model, tools=[get_weather])
            return await Runner.run(agent, QUESTION, run_config=RunConfig(tracing_disabled=True))

    assert asyncio.run(run()).final_output == "get_weather answered: sunny, 21 degrees"
    assert asked == ["Paris"]
