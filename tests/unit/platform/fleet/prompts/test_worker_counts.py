"""Prompts are counted with the worker's tokenizer, and estimated if no worker answers."""

import numpy as np
import pytest

from fairserve.engine.wire.base import WorkerRejectedError, WorkerUnavailableError
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompts.worker import WorkerPromptReader

SYSTEM, USER = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}


class Tokenizer:
    """A tokenizer with one token for each character of a minimal template."""

    def __init__(self, *, wants_user=False, failure=None):
        self.wants_user, self.failure = wants_user, failure

    async def __call__(self, body):
        if self.failure is not None:
            raise self.failure
        if "prompt" in body:
            return ids(body["prompt"])
        roles = [each["role"] for each in body["messages"]]
        if self.wants_user and "user" not in roles:
            raise WorkerRejectedError(400, {"message": "a user must speak"})
        text = str(body.get("tools", ""))
        text += "".join(f"<{each['role']}>{each['content']}" for each in body["messages"])
        return ids(text + "<assistant>" * body["add_generation_prompt"])


def ids(text):
    return np.array([ord(character) for character in text], dtype=np.uint32)


def reader(**options):
    return WorkerPromptReader("m", Tokenizer(**options))


async def chat(reader, *messages, tools=None):
    messages = list(messages)
    return await reader.chat(messages, tools)


@pytest.mark.parametrize(
    ("wants_user", "system"),
    [(False, "<system>be brief"), (True, "<system>be brief<user>")],
)
async def test_system_tokens_are_those_of_the_leading_system_messages(wants_user, system):
    counted = await chat(reader(wants_user=wants_user), SYSTEM, USER)
    assert counted.token_ids.tolist() == ids("<system>be brief<user>hello<assistant>").tolist()
    assert (counted.system_tokens, counted.exact) == (len(system), True)
    assert (await chat(reader(), USER, SYSTEM)).system_tokens == 0


async def test_tools_count_as_system_tokens():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (await chat(reader(), USER, tools=tools)).system_tokens == len(str(tools))


async def test_plain_prompts_are_counted():
    one = await reader().text("hello")
    assert (len(one.token_ids), one.system_tokens, one.exact) == (5, 0, True)
    tokens = await reader(failure=AssertionError()).text([7, 8])
    assert tokens.token_ids.tolist() == [7, 8]


async def test_a_rejection_by_the_worker_is_a_client_error():
    broken = reader(failure=WorkerRejectedError(400, {"message": "unknown role pirate"}))
    with pytest.raises(InvalidRequestError, match="unknown role pirate") as raised:
        await chat(broken, USER)
    assert raised.value.param == "messages"
    with pytest.raises(InvalidRequestError) as raised:
        await broken.text("x")
    assert raised.value.param == "prompt"


async def test_counts_are_estimates_while_no_worker_answers(caplog):
    away = reader(failure=WorkerUnavailableError("no connection"))
    assert not (await chat(away, USER)).exact
    assert not (await away.text("x" * 9)).exact
    assert "no worker of m tokenises (no connection)" in caplog.text
