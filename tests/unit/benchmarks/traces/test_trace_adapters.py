"""Azure, VTC and Mooncake files are read as interactions; errors name the line."""

import json

import pytest

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.model import Interaction, TraceCall, TraceError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
VTC = "req_time_s,client,input_tokens,output_tokens"


def csv(tmp_path, *rows):
    path = tmp_path / "t.csv"
    path.write_bytes(b"".join(row.encode() + b"\r\n" for row in rows))
    return path


def test_azure_files_are_read(tmp_path):
    path = csv(
        tmp_path,
        AZURE,
        "2023-11-16 23:59:59.5000000,374,44",
        "2023-11-17 00:00:01.2500009,10,0",
        "2023-11-16 23:59:58.0,5,7",
    )
    trace = read_trace(path, defaults=Defaults(tenant="t"))
    assert trace.name == "t"
    runs = trace.interactions
    assert [(i.interaction_id, i.arrival_s) for i in runs] == [("4", 0), ("2", 1.5), ("3", 3.25)]
    assert runs[1] == Interaction(
        "2", "t", "azure", "default", 1.5, (TraceCall("0", "azure", (), 0.0, 374, 0, 44),)
    )
    assert runs[2].calls[0].output_tokens == 1  # none in the file


def test_azure_times_may_have_a_zone(tmp_path):
    path = csv(tmp_path, AZURE, "2024-05-10 00:00:00+00:00,1,1", "2024-05-10 01:00:02+01:00,1,1")
    assert [i.arrival_s for i in read_trace(path).interactions] == [0.0, 2.0]


def test_vtc_files_are_read(tmp_path):
    trace = read_trace(csv(tmp_path, VTC, "1.5,13,20,7", "0.5,gpt,9,0"))
    assert trace.interactions == (
        Interaction("3", "default", "vtc", "gpt", 0.5, (TraceCall("0", "vtc", (), 0.0, 9, 0, 1),)),
        Interaction("2", "default", "vtc", "13", 1.5, (TraceCall("0", "vtc", (), 0.0, 20, 0, 7),)),
    )


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (AZURE, "2023-11-16 18:00:00,1", r"expected 3 columns \(TIMESTAMP,.*\), got 2"),
        (AZURE, "yesterday,1,1", "TIMESTAMP must be a time like .*, got 'yesterday'"),
        (AZURE, "2023-11-16 18:00:00Z,1,1", "TIMESTAMP: times with and without a zone"),
        (AZURE, "2023-11-16 18:00:00,0,1", "ContextTokens must be an integer of at least 1"),
        (AZURE, "2023-11-16 18:00:00,1,-1", "GeneratedTokens must be an integer of at least 0"),
        (AZURE, "2023-11-16 18:00:00,1,1.5", "GeneratedTokens must be an integer of at least 0"),
        (VTC, "1,a,1,1,1", r"expected 4 columns \(req_time_s,.*\), got 5"),
        (VTC, "-1,a,1,1", "req_time_s must be a finite number of at least 0"),
        (VTC, "nan,a,1,1", "req_time_s must be a finite number of at least 0"),
        (VTC, "1,,1,1", "client must be a string or an integer, not empty"),
        (VTC, "1,a,0,1", "input_tokens must be an integer of at least 1"),
        (VTC, "1,a,1,x", "output_tokens must be an integer of at least 0, got 'x'"),
    ],
)
def test_errors_of_rows_name_the_line(tmp_path, header, row, message):
    good = {AZURE: "2023-11-16 18:00:00,1,1", VTC: "0,a,1,1"}[header]
    path = csv(tmp_path, header, good, "", row, good)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:4: ")


@pytest.mark.parametrize("header", [AZURE, VTC])
def test_a_header_alone_is_no_trace(tmp_path, header):
    with pytest.raises(TraceError, match=r"t\.csv:1: holds no requests"):
        read_trace(csv(tmp_path, header))


def request(timestamp, tokens, ids, output=5):
    return {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": ids,
    }


def mooncake(tmp_path, *records):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_mooncake_files_are_read(tmp_path):
    path = mooncake(
        tmp_path,
        request(0, 512 * 5 + 1, [0, 1, 2, 9, 10, 11]),  # the last id is of one token
        request(2500, 1024, [0, 7], output=0),
        request(2500, 3, [50]),
        request(2500, 1024, []),
    )
    trace = read_trace(path)
    assert trace.block_tokens == 512
    assert [i.arrival_s for i in trace.interactions] == [0.0, 2.5, 2.5, 2.5]
    assert [i.calls[0].blocks for i in trace.interactions] == [
        ((0, 3), (9, 2)),
        ((0, 1), (7, 1)),
        (),
        (),
    ]
    assert trace.interactions[1] == Interaction(
        "2",
        "default",
        "mooncake",
        "default",
        2.5,
        (TraceCall("0", "mooncake", (), 0.0, 1024, 0, 1, 1, ((0, 1), (7, 1))),),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash_ids": None}, "hash_ids must be a list of integers"),
        ({"hash_ids": [0, True]}, "each of hash_ids must be an integer of at least 0, got True"),
        ({"hash_ids": [0, "1"]}, "each of hash_ids must be an integer of at least 0, got '1'"),
        ({"hash_ids": [-1]}, "each of hash_ids must be an integer of at least 0, got -1"),
        ({"hash_ids": [[0]]}, r"each of hash_ids must be an integer of at least 0, got \[0\]"),
        ({"hash_ids": [4, 4]}, "hash_ids: an id occurs twice"),
        ({"hash_ids": [1, 2, 3, 4]}, "4 hash_ids, but input_length 1025 has at most 3 blocks"),
        ({"timestamp": -1}, "timestamp must be a finite number of at least 0, got -1"),
        ({"input_length": 0}, "input_length must be an integer of at least 1, got 0"),
        ({"output_length": -3}, "output_length must be an integer of at least 0, got -3"),
    ],
)
def test_errors_of_mooncake_requests_name_the_line(tmp_path, change, message):
    good = request(0, 1025, [0])
    path = mooncake(tmp_path, good, {**good, **change}, good)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_mooncake_request_needs_every_key(tmp_path, key):
    bad = request(0, 1025, [0])
    del bad[key]
    path = mooncake(tmp_path, request(0, 1025, [0]), bad)
    with pytest.raises(TraceError, match=rf"m\.jsonl:2: {key} is missing; needed are timestamp"):
        read_trace(path)
