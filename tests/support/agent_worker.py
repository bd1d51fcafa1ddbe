"""A worker that plays the model of an agent: it requests tools, reads their results, and answers."""

import json
import re

from scripted_worker import ScriptedWorker

TOOL_ROUNDS = 2
"""Tool calls that it requests, one after the other, before it answers."""
MARKER = re.compile(r"\bquestion-\d+\b")


class AgentWorker(ScriptedWorker):
    """A worker without a model for agent programs.

    Every question has a marker (``question-7``), which all its answers and arguments repeat, so that
    each call can be attributed to its run whatever a program makes of them: ``calls`` has the marker
    of each, by the call's id.
    """

    def __init__(self, **more):
        self.calls = {}
        super().__init__(**more)

    async def _chat(self, request):
        body = await request.json()
        text = json.dumps(body["messages"])
        found = MARKER.findall(text)
        marker = found[-1] if found else "question-0"
        self.calls[request.headers.get("x-request-id")] = found and marker
        response = self._answer(body, request)
        await response.open()
        await response.begin()
        await self._send(response, {"role": "assistant", "content": ""}, 0)
        deltas = list(answer(body, marker))
        for number, delta in enumerate(deltas, 1):
            await self._send(response, delta, number)
        used_tools = any("tool_calls" in delta for delta in deltas)
        reason = "tool_calls" if used_tools else "stop"
        await self._send(response, {}, len(deltas), finish_reason=reason)
        await self._send(response, None, len(deltas))
        await response.write(b"data: [DONE]\n\n")
        return await response.end()


def answer(body, marker):
    """Yield the deltas of the answer to a call."""
    messages = body["messages"]
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    results = sum(map(is_result, messages))
    final = tools.pop("final_answer", None)  # smolagents ends by a tool
    if tools and results < TOOL_ROUNDS:
        yield tool_call(next(iter(tools.values())), results, marker)
    elif final is not None:
        yield tool_call(final, results, marker)
    elif fields := asked_fields(messages):
        yield {"content": dspy_answer(fields, messages, marker)}
    elif (wanted := body.get("response_format") or {}).get("type") == "json_schema":
        yield {"content": json.dumps(example(wanted["json_schema"]["schema"], marker))}
    else:
        yield {"content": "The tide "}
        yield {"content": f"is known: {marker}."}


def is_result(message):
    """Return whether a message has a tool's result; smolagents sends them as texts of the user."""
    return message["role"] == "tool" or "Observation:" in json.dumps(message.get("content"))


def tool_call(function, number, marker):
    """Return the delta that requests a tool."""
    arguments = json.dumps(example(function.get("parameters") or {}, f"{marker} step {number}"))
    call = {"name": function["name"], "arguments": arguments}
    asked = {"index": 0, "id": f"call_{marker}_{number}", "type": "function", "function": call}
    return {"tool_calls": [asked]}


def example(schema, text):
    """Return a value of a simple JSON schema whose strings are ``text``."""
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        required = schema.get("required", list(properties))
        return {name: example(properties[name], text) for name in required}
    if kind in ("integer", "number"):
        return 1
    if kind == "boolean":
        return True
    if kind == "array":
        return [example(schema.get("items", {}), text)]
    return schema["enum"][0] if "enum" in schema else text


def asked_fields(messages):
    """Return the output fields that DSPy asks for; empty for other clients."""
    last = messages[-1]["content"]
    text = last if isinstance(last, str) else json.dumps(last)
    _, found, rest = text.rpartition("Respond with the corresponding output fields")
    return re.findall(r"\[\[ ## (\w+) ## \]\]", rest)[:-1] if found else []


def dspy_answer(fields, messages, marker):
    """Return an answer in DSPy's format; its ReAct calls the tool, then finishes."""
    steps = str(messages[-1]["content"]).count("observation_")
    finished = steps >= TOOL_ROUNDS
    values = {
        "next_tool_name": "finish" if finished else "tide_table",
        "next_tool_args": "{}" if finished else json.dumps({"place": f"{marker} step {steps}"}),
    }
    parts = [f"[[ ## {name} ## ]]\n{values.get(name, marker)}\n" for name in fields]
    return "\n".join([*parts, "[[ ## completed ## ]]"])
