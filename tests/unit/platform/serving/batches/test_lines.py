"""A file of lines is read whichever editor wrote it."""

import json
import sys

import pytest

from fairserve.platform.serving.batches import lines

ENDPOINT = "/v1/chat/completions"
LINES = [
    json.dumps(
        {"custom_id": f"l{number}", "method": "POST", "url": ENDPOINT, "body": {"x": "a\u2028b"}},
        ensure_ascii=False,
    ).encode()
    for number in range(3)
]


@pytest.mark.parametrize(
    "content",
    [
        b"\n".join(LINES),
        b"\r\n".join(LINES) + b"\r\n",
        b"\n\n".join(LINES) + b"\n \n",
        b"\xef\xbb\xbf" + b"\r\n".join(LINES),
        b"\xef\xbb\xbf\n" + b"\n".join(LINES),
    ],
    ids=["LF", "CRLF", "blank lines", "byte order mark", "mark alone"],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_line_ends_and_marks_of_editors_are_harmless(content, size):
    pieces = [content[place : place + size] for place in range(0, len(content), size)]
    assert lines.check(pieces, ENDPOINT, 10, 1000) == (3, [])


def test_a_mark_within_the_file_is_no_json():
    _, errors = lines.check(
        [b"\n".join([LINES[0], b"\xef\xbb\xbf" + LINES[1]])], ENDPOINT, 10, 1000
    )
    assert [(each["line"], each["code"]) for each in errors] == [(2, "invalid_json_line")]


def test_blank_lines_cost_no_step_each():
    """A file of 100 MiB may have as many blank lines, and each batch reads it at least once."""
    steps = 0

    def count(*_):
        nonlocal steps
        steps += 1

    pieces = [b"\n" * 10_000, b" \n" * 10_000, LINES[0] + b"\n", b"\r\n" * 10_000 + b"{"]
    sys.setprofile(count)
    try:
        total, errors = lines.check(pieces, ENDPOINT, 10, 1000)
    finally:
        sys.setprofile(None)
    assert (total, [each["line"] for each in errors]) == (2, [30_002])
    assert steps < 1_000
