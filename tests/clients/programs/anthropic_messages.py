"""The Anthropic SDK: a loop that calls a tool over Messages."""

import os

from anthropic import AsyncAnthropic
from program import KEY, MODEL, ONE_LINE, main

TOOL = {
    "name": "tide_table",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


async def run(question):
    async with AsyncAnthropic(
        base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
        api_key=KEY,
        default_headers=ONE_LINE(),
    ) as client:
        messages = [{"role": "user", "content": question}]
        while True:
            answer = await client.messages.create(
                model=MODEL, max_tokens=64, messages=messages, tools=[TOOL]
            )
            messages.append({"role": "assistant", "content": answer.content})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": f"high at noon in {call.input['place']}",
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": results})


main(run)
