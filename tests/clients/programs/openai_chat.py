"""The OpenAI SDK: a loop that calls a tool over chat completions, as many agents have it."""

import json

from openai import AsyncOpenAI
from program import MODEL, ONE_LINE, main

TOOL = {
    "type": "function",
    "function": {
        "name": "tide_table",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


async def run(question):
    async with AsyncOpenAI(
        default_headers=ONE_LINE(),
    ) as client:
        messages = [{"role": "user", "content": question}]
        while True:
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, tools=[TOOL]
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                place = json.loads(call.function.arguments)["place"]
                result = f"high at noon in {place}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


main(run)
