"""The command, and a tiny real run: each call has its row, and those that waited have ended."""

import json

import pytest

from fairserve.benchmarks.bench.soak import (
    TENTHS,
    Soaked,
    SoakError,
    SoakOptions,
    Tenth,
    bench,
    check_rows,
    results,
)
from fairserve.benchmarks.commands import bench as bench_command


def test_a_tiny_soak_counts_every_call(tmp_path, capsys):
    path = tmp_path / "out.json"
    bench(SoakOptions(calls=200, waiting=300, json=path), rest_s=0.0)
    document = json.loads(path.read_text())
    assert len(document["tenths"]) == TENTHS
    for tenth in document["tenths"]:
        assert tenth["calls"] >= 20
        assert min(tenth["whole_p50_ms"], tenth["stream_p50_ms"]) > 0
    figures = {figure["name"]: figure for figure in document["figures"]}
    waiting = figures["soak_waiting_call_kb"]["details"]
    assert 0 < waiting["waited"] < waiting["sent"] == 300, "the worker holds the others"
    assert (waiting["completed"], waiting["rejected"]) == (300, 0)
    calls = sum(tenth["calls"] for tenth in document["tenths"]) + 300
    assert document["rows"] == {"completed": calls}
    assert "soak_memory_growth_percent" in capsys.readouterr().out


@pytest.mark.parametrize(
    "rows", [{"completed": 8}, {"completed": 10}, {"completed": 9, "cancelled": 1}, {}]
)
def test_a_row_too_few_or_too_many_is_an_error(rows):
    found = Soaked(completed=9, rows={"completed": 9})
    check_rows(found)
    found.rows = rows
    with pytest.raises(SoakError, match="9 calls were completed"):
        check_rows(found)


def test_growth_is_that_from_the_first_tenth_to_the_last():
    memory_mb = [100, 130, 140, 150, 150, 150, 150, 151, 151, 152]
    tenths = [
        Tenth(1000, 1.0, size, {"whole": 10.0 + at, "stream": 20.0})
        for at, size in enumerate(memory_mb)
    ]
    found = {each.figure.name: each for each in results(Soaked(tenths=tenths))}
    assert found["soak_memory_growth_percent"].value == pytest.approx(52)
    assert found["soak_kept_by_call_bytes"].value == pytest.approx(2e6 / 5000)
    assert found["soak_whole_p50_growth_percent"].value == pytest.approx(90)
    assert found["soak_stream_p50_growth_percent"].value == 0
    assert "soak_waiting_call_kb" not in found


def test_too_few_calls_are_wrong_usage(capsys):
    assert bench_command(["soak", "--calls", "3"]) == 2
    assert "greater than or equal to 40" in " ".join(capsys.readouterr().err.split())
