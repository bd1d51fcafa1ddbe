"""Every part of a tool call reaches its own call, or the answer is malformed."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.base import MalformedAnswerError
from fairserve.engine.wire.tool_call_parts import ToolCallParts

A, B = '{"city": "Rome"}', '{"zone": "CET"}'


def part(index=None, call_id=None, name=None, arguments=None, **more):
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "function": function, **more}


def read(*chunks):
    """Return the calls of some chunks, each as id, name and arguments."""
    calls, tools = {}, ToolCallParts()
    for chunk in chunks:
        for each in tools.read(chunk if isinstance(chunk, list) else [chunk]):
            call = calls.setdefault(each["index"], ["", "", ""])
            function = each["function"]
            assert ("name" in function) == (not call[1]), "the first part alone has the name"
            assert ("id" in each) <= ("name" in function)
            call[0] += each.get("id", "")
            call[1] += function.get("name", "")
            call[2] += function["arguments"]
    tools.end()
    assert list(calls) == list(range(len(calls)))
    return [tuple(call) for call in calls.values()]


BOTH = [("c1", "weather", A), ("c2", "clock", B)]


@given(
    cuts=st.lists(st.integers(0, len(A)), max_size=4),
    style=st.sampled_from(["index", "id", "order", "zero", "random ids"]),
    repeats_name=st.booleans(),
    many=st.booleans(),
)
def test_any_style_of_a_server_gives_the_same_calls(cuts, style, repeats_name, many):
    chunks = []
    for number, (call_id, name, arguments) in enumerate(BOTH):
        places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
        pieces = [arguments[a:b] for a, b in pairwise(places)]
        for order, piece in enumerate(pieces):
            first = order == 0
            again = repeats_name and style in ("index", "id")
            chunks.append(
                part(
                    number if style in ("index", "random ids") else 0 if style == "zero" else None,
                    f"r{number}{order}"
                    if style == "random ids"
                    else call_id
                    if first or style == "id"
                    else None,
                    name if first or again else None,
                    piece,
                )
            )
    found = read(chunks) if many and style != "order" else read(*chunks)
    assert [call[1:] for call in found] == [call[1:] for call in BOTH]


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        ([part(0, "c1", "f", A), part(0, "c2", "f", B)], [("c1", "f", A), ("c2", "f", B)]),
        ([part(0, None, "f", A), part(0, None, "f", A)], [("", "f", A)] * 2),
        ([part(0, None, "f", A), part(0, None, "g", B)], [("", "f", A), ("", "g", B)]),
        ([part(None, None, "f", A), part(None, None, "f", B)], [("", "f", A), ("", "f", B)]),
        ([part(0, "c1", "f", ""), part(0, "c1", "f", A)], [("c1", "f", A)]),
        ([part(None, "c1"), part(None, None, "f", A)], [("c1", "f", A)]),
        ([part(0, "c1", None, A[:3]), part(0, None, "f", A[3:])], [("c1", "f", A)]),
        ([part(7, "c1", "f", A), part(3, "c2", "g", B)], [("c1", "f", A), ("c2", "g", B)]),
        ([part(0, "c1", "f", A[:3]), part(1, "c1", None, A[3:])], [("c1", "f", A)]),
        ([part(), part(0), part(0, "c1", "f", A), part()], [("c1", "f", A)]),
        (
            [
                [part(None, "c1", "f"), part(None, "c2", "g")],
                [part(None, arguments=A), part(None, arguments=B)],
            ],
            [("c1", "f", A), ("c2", "g", B)],
        ),
        (
            [part(None, "c1", "f", A[:3]), [part(None, arguments=A[3:]), part(None, "c2", "g", B)]],
            [("c1", "f", A), ("c2", "g", B)],
        ),
    ],
)
def test_parts_without_an_index_of_their_own_are_assigned(chunks, calls):
    assert read(*chunks) == calls


@pytest.mark.parametrize(
    "chunks",
    [
        [part(None, arguments=A)],
        [part(0, "c1", None, A)],
        [part(0, "c1", "f", ""), part(0, "c1", "g", A)],
        [part(None, "c1", "f", A), part(None, "c1", "g", B)],
        [part(0, "c1", "f", A), part(0, "c1", "f", A)],
        [[part(None, "c1", "f"), part(None, "c2", "g")], part(None, arguments=A)],
        [[part(None, "c1", "f", A), part(None, arguments=B), part(None, arguments=B)]],
    ],
)
def test_a_part_whose_call_is_not_known_is_malformed(chunks):
    with pytest.raises(MalformedAnswerError):
        read(*chunks)


def test_other_fields_of_a_part_remain():
    tools = ToolCallParts()
    (first,) = tools.read([part(0, "c1", "f", json.dumps({}), extra_content={"signature": "x"})])
    assert first["extra_content"] == {"signature": "x"}
    assert first["type"] == "function"
