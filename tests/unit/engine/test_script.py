"""The demo model's script: which requests call which tool, and what the others are answered."""

import asyncio
import json

import pytest

from fairserve.engine.torch.builtin_model import CALL_ID, DEMO_MODEL_NAME, ensure_builtin_model
from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.openai.request import parse
from fairserve.engine.torch.prompt import PromptEncoder
from fairserve.engine.torch.response_formats import ResponseFormats
from fairserve.engine.torch.scripted.answers import ScriptedAnswers
from fairserve.engine.torch.scripted.script import scripted_answer
from fairserve.engine.torch.scripted.scripted_output import ScriptedOutput
from fairserve.platform.fleet.prompts.reader import load_counter
from fairserve.platform.fleet.prompts.tokenizer_files import read_tokenizer


def tool(name, description="", *required, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


ADD = tool("add", "Sum two numbers", "a", "b", a={"type": "integer"}, b={"type": "integer"})
WEATHER = tool("get_weather", "Report a city's weather", "city", city={"type": "string"})
TOOLS = [ADD, WEATHER]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}


def request(*messages, **more):
    body = {"model": "m", "messages": list(messages or [QUESTION]), **more}
    return parse("chat", body, with_tools=True)


def answer(*messages, **more):
    return scripted_answer(request(*messages, **more))


def called(name, arguments="{}", call_id="c1"):
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(text, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def named(name):
    return {"type": "function", "function": {"name": name}}


def test_the_tool_that_fits_the_question_is_called_with_its_words():
    found = answer(tools=TOOLS)
    assert (found.called, json.loads(found.text)) == ("get_weather", {"city": "Paris"})
    found = answer({"role": "user", "content": "What is the sum of 3 and 44?"}, tools=TOOLS)
    assert (found.called, json.loads(found.text)) == ("add", {"a": 3, "b": 44})


@pytest.mark.parametrize(
    ("choice", "name"),
    [("auto", "get_weather"), ("required", "get_weather"), (named("add"), "add"), ("none", "")],
)
def test_tool_choice_is_honoured(choice, name):
    assert answer(tools=TOOLS, tool_choice=choice).called == name


def test_after_a_result_comes_a_text_that_mentions_it():
    found = answer(QUESTION, called("get_weather"), result("sunny, 21 degrees"), tools=TOOLS)
    assert not found.called
    assert found.text == "get_weather answered: sunny, 21 degrees"


def test_a_demanded_call_is_of_the_tool_that_was_called_least():
    turn = [QUESTION, called("get_weather"), result("sunny")]
    assert answer(*turn, tools=TOOLS, tool_choice="required").called == "add"
    assert answer(*turn, tools=TOOLS, tool_choice=named("get_weather")).called == "get_weather"


def test_the_next_message_of_the_user_begins_anew():
    turn = [QUESTION, called("get_weather"), result("sunny")]
    assert answer(*turn, QUESTION, tools=TOOLS).called == "get_weather"


def test_a_text_repeats_the_message_and_is_short():
    found = answer({"role": "user", "content": "tide " * 1000})
    assert found.text.startswith('You wrote: "tide tide')
    assert len(found.body) < 256
    assert bytes(found.body).decode() == found.text


def test_an_object_of_the_schema_follows_the_results_of_tools():
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["publish", "revise"]}, "why": {"type": "string"}},
        "required": ["verdict", "why"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}}
    assert answer(tools=TOOLS, response_format=wanted).called == "get_weather"
    found = answer(
        QUESTION, called("get_weather"), result("sunny"), tools=TOOLS, response_format=wanted
    )
    value = json.loads(found.text)
    assert value == {"verdict": "publish", "why": "get_weather answered: sunny"}
    assert list(json.loads(answer(response_format={"type": "json_object"}).text)) == ["answer"]


def test_arguments_without_a_known_value_are_left_to_the_grammar():
    schema = {"type": "string", "pattern": "^[A-Z]{3}$"}
    found = answer(tools=[tool("book", "", "code", code=schema)])
    assert (found.called, found.text, found.body) == ("book", None, None)
    assert found.output_format.definition["properties"] == {"code": schema}
    assert found.head == [CALL_ID, *b"book"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": named("other")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": 5}, "tools"),
    ],
)
def test_tools_that_are_none_are_rejected_by_name(fields, param):
    with pytest.raises(RequestError) as caught:
        request(**fields)
    assert caught.value.param == param


def test_other_models_still_reject_tools():
    with pytest.raises(RequestError, match="cannot honour tools"):
        parse("chat", {"model": "m", "messages": [QUESTION], "tools": TOOLS})


def test_prompts_with_tools_are_those_that_the_platform_counts():
    folder = ensure_builtin_model(DEMO_MODEL_NAME)
    messages = [
        {"role": "system", "content": "Help."},
        QUESTION,
        called("get_weather", '{"city": "Zürich", "days": [1, 2.5]}'),
        result("sunny"),
    ]
    from transformers import AutoTokenizer

    encoder = PromptEncoder(AutoTokenizer.from_pretrained(folder), 262)
    here = asyncio.run(encoder.encode(request(*messages, tools=TOOLS)))
    there = load_counter(folder).chat(messages, TOOLS)
    assert here.tolist() == there.token_ids.tolist()
    assert 0 < there.system_tokens < len(here)
    text = read_tokenizer(folder).backend.decode(here.tolist(), skip_special_tokens=False)
    assert '<|tool|>get_weather{"city": "Zürich", "days": [1, 2.5]}<|end|>' in text


async def test_tokens_of_the_script_end_it_only_without_min_tokens():
    answers = ScriptedAnswers(262, {256}, ResponseFormats(None, 262, {256}))
    first = answer().body[0]
    for more in [{"stop_token_ids": [first]}, {"stop_token_ids": [256], "min_tokens": 3}]:
        output, _ = await answers.output(request(**more), 20)
        assert tokens_of(output.start().allowed([])) == [first]
    with pytest.raises(RequestError, match="cannot honour stop_token_ids") as caught:
        await answers.output(request(stop_token_ids=[first], min_tokens=3), 20)
    assert caught.value.param == "stop_token_ids"


class Digits:
    """A grammar of three digits, each below 5."""

    problem = ""

    def start(self):
        return self

    def allowed(self, output):
        import numpy as np

        mask = np.zeros(9, dtype=np.int32)
        tokens = b"01234" if len(output) < 3 else [256]
        for token in tokens:
            mask[token // 32] |= 1 << token % 32
        return mask


def tokens_of(mask):
    return [
        number * 32 + bit
        for number, word in enumerate(mask)
        for bit in range(32)
        if word >> bit & 1
    ]


def test_a_script_is_followed_as_far_as_its_grammar_allows():
    plain = ScriptedOutput([CALL_ID, 97], list(b"bc"), 256, 262).start()
    output = []
    for expected in [CALL_ID, *b"abc", 256]:
        assert tokens_of(plain.allowed(output)) == [expected]
        output.append(expected)
    limited = ScriptedOutput([97], list(b"191"), 256, 262, Digits()).start()
    assert tokens_of(limited.allowed([])) == [97]
    assert tokens_of(limited.allowed(list(b"a"))) == list(b"1")
    assert tokens_of(limited.allowed(list(b"a1"))) == list(b"01234")
    assert tokens_of(limited.allowed(list(b"a12"))) == list(b"01234"), "it does not return to it"
    assert tokens_of(limited.allowed(list(b"a120"))) == [256]
