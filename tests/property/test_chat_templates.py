"""Prompts are those that transformers renders, for what templates of common families use."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fairserve.platform.fleet.prompts import chat_template
from fairserve.platform.fleet.prompts.chat_template import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
FOLDER = Path(__file__).with_name("chat_templates")
FAMILIES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
"""Our own templates, with what those of common families use."""
UNSAFE = {
    "changes its data": "{{ messages.append(content) }}",
    "leaves the sandbox": "{{ messages.__class__.content }}",
    "loops": "{% for content in range(10000000) %}{% endfor %}",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Get <b>weather</b> & "more" über',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "b"], "default": 1},
                "days": {"type": "array", "items": {"type": ["integer", "null"]}},
            },
            "required": ["city"],
        },
    },
}
CONTENTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["  a b \n", "stop", "<think>\nwhy\n</think>\n\nyes", "{{ bos_token }}", "", "a'\"<&>"]
    ),
)
CALLS = st.fixed_dictionaries(
    {"city": CONTENTS}, optional={"days": st.lists(st.none() | st.integers(0, 9), max_size=2)}
).map(
    lambda given: {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": given},
    }
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
            "content": CONTENTS,
        },
        optional={"reasoning_content": CONTENTS},
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": CONTENTS,
            "tool_calls": st.lists(CALLS, min_size=1, max_size=2),
        }
    ),
)
CALL = {"name": "weather", "arguments": {"city": "Köln", "days": [1, None]}}
CHAT = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "It is sunny. "},
]
OPTIONS = st.one_of(
    st.fixed_dictionaries(
        {"add_generation_prompt": st.booleans()},
        optional={"enable_thinking": st.booleans(), "thinking": st.booleans()},
    ),
    st.just({"add_generation_prompt": False, "continue_final_message": True}),
)


PARTS = {"gemma", "glm"}
"""Families whose templates loop over the parts of a content, so that they get parts."""


def as_given(chat, family):
    """Return a conversation as vLLM gives it to a template."""
    if family not in PARTS:
        return chat
    return [
        message
        if message["role"] == "tool"
        else {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in chat
    ]


def outcome(render):
    """Return the prompt, or the reason why there is none."""
    try:
        return render()
    except ValueError as error:
        return "not to be rendered" if "continue" in str(error) else str(error)
    except Exception as error:  # templates may raise anything
        return f"{type(error)}: {error}"


@pytest.mark.parametrize("family", [*FAMILIES, *UNSAFE])
@given(
    chat=st.lists(MESSAGES, min_size=1, max_size=6),
    tools=st.none() | st.just([TOOL]),
    options=OPTIONS,
)
@example(CHAT, [TOOL], {"add_generation_prompt": True})
@example(CHAT[1:4], None, {"add_generation_prompt": True, "enable_thinking": False})
@example(CHAT, None, {"add_generation_prompt": False, "continue_final_message": True})
@example([CHAT[0], CHAT[1], CHAT[4]], [TOOL], {"add_generation_prompt": False})
def test_prompts_are_those_of_transformers(family, chat, tools, options):
    text = (FAMILIES | UNSAFE)[family]
    backend = Tokenizer(models.BPE({"a": 0}, []))
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=text, **SPECIAL)
    ours = ChatTemplate({"default": text}, theirs.special_tokens_map)
    given = as_given(chat, family)
    want = outcome(
        lambda: theirs.apply_chat_template(given, tools=tools, tokenize=False, **options)
    )
    assert outcome(lambda: ours.render(chat, tools, **options)) == want


@pytest.mark.parametrize("family", FAMILIES)
def test_each_template_renders_an_agents_conversation(family):
    """The property would hold for templates that reject everything."""
    chat = [CHAT[0], CHAT[1], CHAT[4]] if family == "gemma" else CHAT
    text = ChatTemplate({"default": FAMILIES[family]}, SPECIAL).render(chat, [TOOL])
    assert "It is sunny." in text


def test_a_prompt_of_too_many_characters_is_an_error(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_CHARS", 100)
    template = ChatTemplate(
        {"default": "{% for _ in range(50) %}{{ messages[0].content }}{% endfor %}"}
    )
    assert len(template.render([{"role": "user", "content": "xx"}])) == 100
    with pytest.raises(ValueError, match="more than 100 characters"):
        template.render([{"role": "user", "content": "xxx"}])
