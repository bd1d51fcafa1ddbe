"""Conversation keys are equal exactly where a framework would send the same messages."""

import pytest

from fairserve.interactions.tracking.conversation import Conversation

TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"a": 1, "b": [2]}'},
}
USER = {"role": "user", "content": "Find it."}


def answer(content="Here.", **more):
    return {"role": "assistant", "content": content, **more}


def continues(messages, asked, output):
    """Return whether a call with these messages continues one with that prompt and answer."""
    (key, *_) = Conversation(asked).answered([output])
    return key in Conversation(messages).history


def test_the_longest_conversation_comes_first():
    first = [USER]
    second = [*first, answer("One."), {"role": "user", "content": "And?"}]
    third = [*second, answer("Two."), {"role": "user", "content": "So?"}]
    keys = [
        Conversation(m).answered([a])[0]
        for m, a in ((first, answer("One.")), (second, answer("Two.")))
    ]
    assert Conversation(third).history == (keys[1], keys[0])
    assert Conversation(second).history == (keys[0],)
    assert Conversation(first).history == ()


@pytest.mark.parametrize(
    ("output", "repeated"),
    [
        (answer("Here."), answer(" Here.\n")),
        (answer(None, tool_calls=[TOOL_CALL]), answer("", tool_calls=[TOOL_CALL])),
        (answer("Here."), answer([{"type": "text", "text": "Here."}])),
        (answer("Here.", refusal=None, annotations=[]), answer("Here.")),
        (
            answer(None, tool_calls=[TOOL_CALL]),
            answer(
                None,
                tool_calls=[
                    {
                        **TOOL_CALL,
                        "function": {"name": "search", "arguments": '{"b":[2],"a":1}'},
                        "index": 0,
                    }
                ],
            ),
        ),
        (
            answer(None, tool_calls=[{"id": "c", "function": {"name": "f", "arguments": ""}}]),
            answer(None, tool_calls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}]),
        ),
        ({"content": "Here."}, answer("Here.")),
    ],
)
def test_changes_by_frameworks_keep_the_key(output, repeated):
    assert continues([USER, repeated, USER], [USER], output)


@pytest.mark.parametrize(
    "repeated",
    [
        answer("There."),
        answer("Here.", tool_calls=[TOOL_CALL]),
        {"role": "user", "content": "Here."},
    ],
)
def test_another_answer_is_another_conversation(repeated):
    assert not continues([USER, repeated, USER], [USER], answer("Here."))


def test_other_arguments_are_another_tool_call():
    other = {**TOOL_CALL, "function": {"name": "search", "arguments": "{}"}}
    output = answer(None, tool_calls=[TOOL_CALL])
    assert not continues([USER, answer(None, tool_calls=[other])], [USER], output)


def test_a_handover_with_other_instructions_is_another_conversation():
    asked = [{"role": "system", "content": "You plan."}, USER]
    handed = [{"role": "developer", "content": "You write."}, USER, answer(), USER]
    assert continues(handed, asked, answer())


def test_another_question_is_another_conversation():
    other = {"role": "user", "content": "Find another one."}
    assert not continues([other, answer(), USER], [USER], answer())


def test_each_sample_may_be_continued():
    keys = Conversation([USER]).answered([answer("One."), answer("Two."), answer("Two.")])
    assert len(keys) == 2
    for output, key in zip(("One.", "Two."), keys, strict=True):
        assert Conversation([USER, answer(output), USER]).history == (key,)


def test_without_its_answer_a_call_is_known_by_its_prompt():
    first, second = [USER], [USER, answer("One."), {"role": "user", "content": "And?"}]
    keys = [key for asked in (first, second) for key in Conversation(asked).answered([])]
    continued = Conversation([*second, answer("Two."), USER])
    assert continued.answered_prompts == (keys[1], keys[0])
    assert Conversation([USER, answer("Another."), USER]).answered_prompts == (keys[0],)
    assert not set(keys).intersection(continued.history)
    # What the client wrote as the beginning of an answer is part of the prompt.
    (begun,) = Conversation([USER, answer("On")]).answered([])
    assert Conversation([USER, answer("On"), answer("e."), USER]).answered_prompts[0] == begun


def test_a_prompt_without_messages_has_no_key():
    instructions = {"role": "system", "content": "You plan."}
    assert Conversation([instructions]).answered([]) == ()
    assert Conversation([instructions, answer(), USER]).answered_prompts == ()


def test_tool_results_name_the_requesting_call():
    output = answer(None, tool_calls=[TOOL_CALL, {**TOOL_CALL, "id": "call_2"}])
    keys = Conversation([USER]).answered([output])
    results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": "x"} for n in (1, 2)]
    assert Conversation([output, *results]).tool_results == keys[1:]
    # Results before the last answer belong to another agent.
    assert Conversation([output, *results, answer(), USER]).tool_results == ()
    assert Conversation(results).tool_results == keys[1:], "the history may be shortened"


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": 3, "content": 7},
        {"role": "assistant", "content": [1, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "tool_calls": "none"},
        {
            "role": "assistant",
            "tool_calls": [None, {"function": None}, {"function": {"arguments": 3}}],
        },
        {"role": "assistant", "tool_calls": [{"id": 3, "function": {"arguments": "[" * 100_000}}]},
        {"role": "tool", "tool_call_id": 5},
        {"role": "user", "content": "\ud800"},
    ],
)
def test_malformed_messages_are_ignored(message):
    conversation = Conversation([message, USER])
    assert conversation.answered([message, answer()])


def test_no_text_is_taken_for_two_messages():
    one = Conversation([{"role": "user", "content": "a4:user"}]).answered([answer()])
    two = Conversation(
        [{"role": "user", "content": "a"}, {"role": "user", "content": ""}]
    ).answered([answer()])
    assert one != two
