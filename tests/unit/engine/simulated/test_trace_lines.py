"""Errors of unreadable files name the file and the line."""

import gzip
import random
import zlib

import pytest

from fairserve.engine.simulated.traces.lines import TraceLine, read_lines, trace_name
from fairserve.engine.simulated.traces.model import TraceError


def texts(path):
    return [(line.number, line.text) for line in read_lines(path)]


def test_gzip_is_recognised_by_its_content_not_by_its_name(tmp_path):
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_bytes(b"a\nb\n")
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(b"a\nb\n"))
    assert texts(plain) == texts(packed) == [(1, "a"), (2, "b")]


def test_a_gzip_may_have_several_members(tmp_path):
    path = tmp_path / "t.gz"
    members = gzip.compress(b"a\nb") + gzip.compress(b"") + gzip.compress(b"c\nd\n")
    path.write_bytes(members + b"\0" * 100)
    assert texts(path) == [(1, "a"), (2, "bc"), (3, "d")]


def test_the_last_line_may_lack_its_newline(tmp_path):
    for end, data in enumerate([b"a\nb", gzip.compress(b"a\nb")]):
        path = tmp_path / str(end)
        path.write_bytes(data)
        assert texts(path) == [(1, "a"), (2, "b")]


def test_blank_lines_are_skipped_but_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\r\n  \nb")
    assert texts(path) == [(1, "a"), (4, "b")]


def test_a_file_without_lines_is_rejected(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"")
    assert texts(path) == []
    path.write_bytes(gzip.compress(b""))
    assert texts(path) == []


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_gzip_names_the_first_lost_line(tmp_path, share):
    rng = random.Random(5)
    data = gzip.compress(b"".join(b"%d\n" % rng.getrandbits(200) for _ in range(20_000)))
    cut = data[: int(len(data) * share)]
    whole = zlib.decompressobj(31).decompress(cut).count(b"\n")
    assert 0 < whole < 20_000
    path = tmp_path / "t.gz"
    path.write_bytes(cut)
    with pytest.raises(TraceError) as caught:
        texts(path)
    message = f"{path}:{whole + 1}: the gzip data ends early; the file is truncated"
    assert str(caught.value) == message


def test_a_gzip_without_its_trailer_is_truncated(tmp_path):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"a\nb\n")[:-4])
    with pytest.raises(TraceError, match=r"t\.gz:3: .*truncated"):
        texts(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-8] + b"\x00" * 8,  # checksum
        lambda data: data[:10] + b"\xff" * 20,  # data
        lambda data: data[:2] + b"\x07" + data[3:],  # method
        lambda data: data + b"something else",
    ],
)
def test_a_damaged_gzip_is_rejected(tmp_path, damage):
    path = tmp_path / "t.gz"
    path.write_bytes(damage(gzip.compress(b"a\nb\n")))
    with pytest.raises(TraceError, match=r"t\.gz:[13]: damaged gzip data"):
        texts(path)


def test_text_that_is_not_utf_8_is_rejected(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(TraceError, match=r"t:3: not UTF-8"):
        texts(path)


def test_unopenable_files_are_rejected(tmp_path):
    with pytest.raises(TraceError, match=r"absent: cannot be read \(No such file"):
        texts(tmp_path / "absent")
    with pytest.raises(TraceError, match="cannot be read"):
        texts(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1', r"not JSON \(Expecting ',' delimiter at character 8\)"),
        ("[1]", r"expected a JSON object, got \[1\]"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON that can be read"),
    ],
)
def test_lines_that_are_no_json_object_are_rejected(tmp_path, text, message):
    with pytest.raises(TraceError, match=f"f:7: {message}"):
        TraceLine(tmp_path / "f", 7, text).json_object()


def test_values_in_messages_are_truncated(tmp_path):
    with pytest.raises(TraceError) as caught:
        TraceLine(tmp_path / "f", 7, "").integer("x" * 1000, "in")
    assert str(caught.value).startswith(f"{tmp_path / 'f'}:7: in must be an integer")
    assert str(caught.value).endswith("...")
    assert len(str(caught.value)) < len(str(tmp_path)) + 150


@pytest.mark.parametrize(
    ("value", "number"), [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0), ("7", 7.0)]
)
def test_numbers_may_be_text(tmp_path, value, number):
    assert TraceLine(tmp_path, 1, "").number_text(value, "x") == number


@pytest.mark.parametrize("value", ["", "a", "-1", "nan", "inf", "1e999"])
def test_invalid_numbers_as_text_are_rejected(tmp_path, value):
    with pytest.raises(TraceError, match="x must be a finite number of at least 0"):
        TraceLine(tmp_path, 1, "").number_text(value, "x")


@pytest.mark.parametrize("value", ["", "a", "-1", "1.0", " 1", "+1", "²", "٣", "9" * 5000])
def test_invalid_integers_as_text_are_rejected(tmp_path, value):
    with pytest.raises(TraceError, match="x must be an integer of at least 0"):
        TraceLine(tmp_path, 1, "").integer_text(value, "x")


@pytest.mark.parametrize("value", [True, "1", 1.0, None, -1, [1]])
def test_invalid_json_integers_are_rejected(tmp_path, value):
    with pytest.raises(TraceError, match="x must be an integer of at least 0"):
        TraceLine(tmp_path, 1, "").integer(value, "x")


@pytest.mark.parametrize("value", [True, "1", None, -0.1, float("nan"), float("inf"), 10**400, [1]])
def test_invalid_json_numbers_are_rejected(tmp_path, value):
    with pytest.raises(TraceError, match="x must be a finite number of at least 0"):
        TraceLine(tmp_path, 1, "").number_at_least_zero(value, "x")


@pytest.mark.parametrize("value", [True, "", None, 1.0, ["a"]])
def test_invalid_identifiers_are_rejected(tmp_path, value):
    with pytest.raises(TraceError, match="x must be a string or an integer"):
        TraceLine(tmp_path, 1, "").identifier(value, "x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl.gz", "a"),
        ("a.csv", "a"),
        ("a.b.jsonl", "a.b"),
        ("a.json.gz", "a"),
        ("a", "a"),
        (".csv", ".csv"),
    ],
)
def test_traces_are_named_after_their_file(tmp_path, name, expected):
    assert trace_name(tmp_path / name) == expected
