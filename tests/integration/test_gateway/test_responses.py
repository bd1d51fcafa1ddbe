"""The openai client gets responses from the embedded engine."""

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai_types import EVENTS_OF_A_TRUNCATED_TEXT
from pydantic import TypeAdapter

EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def client(server):
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key=server.app_key, max_retries=0) as client:
        yield client


def model_of(client):
    return client.models.list().data[0].id


def test_streamed_and_whole_responses_are_the_chat_calls(client):
    model, text = model_of(client), "Count the tides."
    options = {"temperature": 0, "model": model}
    stream = client.responses.create(
        **options, input=text, instructions="Be brief.", max_output_tokens=8, stream=True
    )
    events = [EVENT.validate_python(event.model_dump()) for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == EVENTS_OF_A_TRUNCATED_TEXT
    last = Response.model_validate(events[-1].response.model_dump())
    assert last.incomplete_details.reason == "max_output_tokens"
    assert last.usage.output_tokens == 8
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    whole = client.responses.create(
        **options, input=text, instructions="Be brief.", max_output_tokens=8
    )
    chat = client.chat.completions.create(
        **options,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": text},
        ],
        max_tokens=8,
    )
    assert "".join(deltas) == last.output_text == whole.output_text
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    read = client.responses.retrieve(last.id)
    assert (read.status, read.output_text) == ("incomplete", last.output_text)


def test_what_the_worker_cannot_do_names_the_field_and_the_worker(client):
    tool = {"type": "function", "name": "tides", "parameters": {"type": "object"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model_of(client), input="x", tools=[tool])
    assert caught.value.param == "tools"
    assert f"the workers of {model_of(client)!r}" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model_of(client), input="x", reasoning={"effort": "low"})
    assert caught.value.param == "reasoning.effort"
