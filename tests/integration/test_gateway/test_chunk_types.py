"""Each chunk, and each whole answer, has the types of the openai package and no other field."""

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai_types import ADDED, ADDED_BY_VLLM, chat_chunks, strictly, text_chunks
from scripted_worker import ScriptedWorker
from torch_worker import MODEL

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
OPTIONS = {
    "plain": {},
    "usage": USAGE,
    "continuous usage": CONTINUOUS,
    "samples": {"n": 3, **USAGE},
    "stop": {"stop": ["e", "a", "i", " "]},
    "JSON": {"response_format": {"type": "json_object"}},
}


def request(path, **more):
    if path == CHAT:
        said = {"messages": [{"role": "user", "content": "Hello there"}], "logprobs": True}
        said["top_logprobs"] = 2
    else:
        said = {"prompt": "Hello there", "logprobs": 2}
    return {"model": MODEL, "max_tokens": 8, "temperature": 0, "seed": 1, **said, **more}


def parts_of(path, text, added):
    return (chat_chunks if path == CHAT else text_chunks)(text, added)


def texts(path, chunks):
    """Return the joined text of each sample."""
    found = {}
    for chunk in chunks:
        for choice in chunk.choices:
            part = choice.delta.content if path == CHAT else choice.text
            found[choice.index] = found.get(choice.index, "") + (part or "")
    return found


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("options", OPTIONS)
def test_chunks_of_our_engine(server, path, options):
    body = request(path, **OPTIONS[options])
    answer = server.post(path, body | {"stream": True})
    assert answer.status_code == 200, answer.text
    chunks = parts_of(path, answer.text, ADDED)
    body.pop("stream_options", None)
    plain = server.post(path, body).json()
    whole = strictly(ChatCompletion if path == CHAT else Completion, plain, ADDED)
    assert texts(path, chunks) == {
        choice.index: choice.message.content if path == CHAT else choice.text
        for choice in whole.choices
    }
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {
        (chunks[0].id, "chat.completion.chunk" if path == CHAT else "text_completion", MODEL)
    }
    counted = [chunk for chunk in chunks if chunk.usage is not None]
    expected = {"usage": 1, "samples": 1, "continuous usage": len(chunks)}.get(options, 0)
    assert len(counted) == expected
    if counted:
        assert not counted[-1].choices
        assert counted[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.fixture(scope="module")
def gateway(start_server):
    worker = ScriptedWorker()
    yield start_server("--worker-urls", worker.url)
    worker.close()


TOOL = {"type": "function", "function": {"name": "tides", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"tools": [TOOL], "messages": [{"role": "user", "content": "use tides moon"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "think hello"}]}),
        (TEXT, {"prompt": "say hello"}),
    ],
    ids=["tools", "reasoning", "text"],
)
@pytest.mark.parametrize("options", [{}, USAGE, CONTINUOUS], ids=["plain", "usage", "continuous"])
def test_chunks_of_a_worker_that_is_not_ours(gateway, path, more, options):
    body = {"model": "scripted", "stream": True, **more, **options}
    answer = gateway.post(path, body)
    assert answer.status_code == 200, answer.text
    chunks = parts_of(path, answer.text, ADDED_BY_VLLM)
    assert len(chunks) > 2
    whole = gateway.post(path, {"model": "scripted", **more}).json()
    strictly(ChatCompletion if path == CHAT else Completion, whole, ADDED_BY_VLLM)
