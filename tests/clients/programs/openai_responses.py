"""The OpenAI SDK: a chain of three responses, each after the one before."""

from openai import AsyncOpenAI
from program import MODEL, ONE_LINE, main


async def run(question):
    async with AsyncOpenAI(
        default_headers=ONE_LINE(),
    ) as client:
        first = await client.responses.create(model=MODEL, input=question)
        second = await client.responses.create(
            model=MODEL, input="And at noon?", previous_response_id=first.id
        )
        await client.responses.create(
            model=MODEL, input="And at night?", previous_response_id=second.id
        )


main(run)
