"""Test ``fairserve trace export``: times, outputs, and errors in one line."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from recorded_calls import ended, writer

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.platform.server import cli
from fairserve.platform.server.commands.trace import since

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("30s", NOW - timedelta(seconds=30)),
        ("90m", NOW - timedelta(minutes=90)),
        ("1h", NOW - timedelta(hours=1)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("24h", NOW - timedelta(days=1)),
        ("7d", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-05-04", datetime(2026, 5, 4, tzinfo=UTC)),
        ("2026-05-04T10:30", datetime(2026, 5, 4, 10, 30, tzinfo=UTC)),
        ("2026-05-04T10:30:00Z", datetime(2026, 5, 4, 10, 30, tzinfo=UTC)),
        ("2026-05-04 10:30+02:00", datetime(2026, 5, 4, 8, 30, tzinfo=UTC)),
    ],
)
def test_since_is_parsed(text, then):
    assert since(text, NOW) == then.timestamp()


BAD = ["", "yesterday", "1", "-1h", "1 h", "h", "1y", "2026-13-01", "999999999w", "nan", "infh"]


@pytest.mark.parametrize("text", [*BAD, "2026-05-04T12:00:01Z"])
def test_invalid_or_future_times_are_rejected(text):
    with pytest.raises(ValueError, match=r"^--since is "):
        since(text, NOW)


def run(capsysbinary, *arguments):
    try:
        code = cli.main(["trace", *map(str, arguments)])
    except SystemExit as exit_:
        code = exit_.code or 0
    out, err = capsysbinary.readouterr()
    return code, out, err.decode()


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    at = datetime.now(UTC).timestamp() - 1000
    calls = [
        ended(run=str(n), opened_at=at + n, begin_at=at + n, end_at=at + n + 1) for n in range(3)
    ]
    writer(folder / "recording").write(calls)
    return folder


def test_help_is_printed(capsysbinary):
    for arguments in (["--help"], ["export", "--help"]):
        code, out, _ = run(capsysbinary, *arguments)
        assert code == 0
        assert out.startswith(b"Usage: fairserve trace")


def test_export_writes_to_standard_output_or_a_file(capsysbinary, data_dir, tmp_path):
    code, out, err = run(capsysbinary, "export", "--since", "1h", "--data-dir", data_dir)
    assert code == 0
    assert [json.loads(line)["arrival_s"] for line in out.splitlines()] == [0.0, 1.0, 2.0]
    assert err.startswith("3 interactions, 3 calls; second 0 is 20")
    path = tmp_path / "trace.jsonl.gz"
    asked = ["export", "--since", "1h", "--data-dir", data_dir, "--out", path]
    assert run(capsysbinary, *asked)[:2] == (0, b"")
    assert len(read_trace(path)) == 3


def test_the_folder_may_be_set_by_the_environment(capsysbinary, data_dir, monkeypatch):
    monkeypatch.setenv("FAIRSERVE_DATA_DIR", str(data_dir))
    assert run(capsysbinary, "export", "--since", "1h")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["import"],
        ["export"],
        ["export", "--since", "yesterday"],
        ["export", "--since", "2999-01-01"],
        ["export", "--since", "1h", "--out", "/nowhere/at/all.jsonl"],
        ["export", "--since", "1h", "--out", "/"],
        ["export", "--since", "1h", "--nothing"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(capsysbinary, arguments):
    code, out, err = run(capsysbinary, *arguments)
    assert (code, out) == (2, b"")
    [line] = err.splitlines()
    assert line.startswith("fairserve trace")


def test_without_a_recording_an_earlier_file_is_kept(capsysbinary, data_dir, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("earlier")
    for asked in (["10s", "--data-dir", data_dir], ["1h", "--data-dir", tmp_path / "none"]):
        code, out, err = run(capsysbinary, "export", "--out", path, "--since", *asked)
        assert (code, out) == (1, b"")
        assert "no run that began since 20" in err
    assert path.read_text() == "earlier"
