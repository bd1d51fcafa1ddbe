"""Marks are written into Markdown and JSON and read again; nothing else in a document changes."""

import json

import pytest

from fairserve.benchmarks.evidence.marks import Mark, StillHolds, read_mark, write_mark

MARKS = [
    Mark("0123456789ab", "fairserve x --seeds 5"),
    Mark("0123456789ab", "fairserve x --seeds 5 --plot", "ba9876543210"),
    Mark("0123456789ab", "fairserve x", "", StillHolds("abcdef012345", "only `messages` changed: all.")),
    Mark(still_holds=StillHolds("abcdef012345", "looked at")),
    Mark(),
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("before", MARKS)
def test_the_last_written_mark_is_kept(tmp_path, mark, before):
    path = tmp_path / "x.md"
    path.write_text("# x\n\nFingerprints are below: `0123`.\n\n| a |\n")
    write_mark(path, before)
    write_mark(path, mark)
    assert read_mark(path) == mark
    text = path.read_text()
    assert (
        text == f"# x\n\nFingerprints are below: `0123`.\n\n| a |\n\n{mark.lines()}".rstrip() + "\n"
    )


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("indent", [None, 1, 2])
def test_a_mark_in_json_is_a_key(tmp_path, mark, indent):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"figures": [1, {"a": 0.1}]}, indent=indent) + "\n")
    assert read_mark(path) == Mark()
    write_mark(path, Mark("00", "before"))
    write_mark(path, mark)
    assert read_mark(path) == mark
    document = {"figures": [1, {"a": 0.1}], "fingerprint": mark.to_plain()}
    assert path.read_text() == json.dumps(document, indent=indent) + "\n"
