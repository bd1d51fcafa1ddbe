"""Clients see only the public part of a worker's error."""

import pytest

from fairserve.engine.wire.upstream_message import MAX_CHARS, public_message


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("see http://10.0.0.7:8000/v1?key=1 now", "see [address] now"),
        ("Cannot connect to host 10.1.2.3:80", "Cannot connect to host [address]"),
        ("Connect call failed ('127.0.0.1', 8000)", "Connect call failed ('[address])"),
        ("vllm-0.vllm.svc:8000 and api.example.com", "[address] and [address]"),
        (
            "gpu-box:8000, localhost, [::1]:80, fe80::1",
            "[address], [address], [address], [address]",
        ),
        ("key sk-abc123, Bearer abc org-1Ab2", "key [key], [key] [key]"),
        ("request 550e8400-e29b-41d4-a716-446655440000", "request [key]"),
        ('File "/srv/vllm/engine.py", line 12', 'File "[path]", line 12'),
        ("two\nlines\x00", "two lines"),
    ],
)
def test_internal_details_are_replaced(text, public):
    assert public_message(text) == public


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens is 5000; the context of Qwen2.5-7B is 4096 tokens",
        "messages[0].content: a part of type image_url, and user_message, are unknown",
    ],
)
def test_an_ordinary_message_is_unchanged(text):
    assert public_message(text) == text


def test_worker_name_and_token_are_replaced():
    text = public_message("Box failed, box: boxes of hunter2", ("box", "hunter2", ""))
    assert text == "[address] failed, [address]: boxes of [address]"


def test_a_long_message_is_truncated():
    assert len(public_message("a " * 100_000)) == MAX_CHARS
