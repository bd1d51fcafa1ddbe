"""A trace survives writing and reading, is reproducible byte for byte, and is written atomically."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.traces.interaction_file import read_interactions, write_trace
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall, TraceError

NAMES = st.text(min_size=1, max_size=6)
SECONDS = st.floats(min_value=0, max_value=1e9)


@st.composite
def calls(draw, call_id, earlier, block_tokens):
    counts = draw(st.lists(st.integers(1, 4), max_size=3))
    start = draw(st.integers(0, 50))
    runs = []
    for count in draw(st.permutations(counts)):
        runs.append((start, count))
        start += count + draw(st.integers(0, 3))
    shared = sum(counts) * block_tokens
    prompt = shared + draw(st.integers(0 if shared else 1, 100))
    system = draw(st.integers(0, prompt))
    return TraceCall(
        call_id=call_id,
        agent=draw(NAMES),
        deps=tuple(draw(st.lists(st.sampled_from(earlier), unique=True))) if earlier else (),
        gap_s=draw(SECONDS),
        input_tokens=prompt - system,
        system_tokens=system,
        output_tokens=draw(st.integers(1, 5000)),
        samples=draw(st.integers(1, 4)),
        blocks=tuple(draw(st.permutations(runs))),
    )


@st.composite
def interactions(draw, interaction_id, block_tokens):
    ids = draw(st.lists(NAMES, unique=True, min_size=1, max_size=5))
    return Interaction(
        interaction_id=interaction_id,
        tenant=draw(NAMES),
        app=draw(NAMES),
        user=draw(NAMES),
        arrival_s=draw(SECONDS),
        calls=tuple(draw(calls(i, ids[:n], block_tokens)) for n, i in enumerate(ids)),
        scope=draw(st.sampled_from(["file", "session"])),
        group=draw(st.sampled_from(["", "abusive", "ä"])),
    )


@st.composite
def traces(draw):
    block_tokens = draw(st.sampled_from([1, 16, 512]))
    ids = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    chosen = [draw(interactions(i, block_tokens)) for i in ids]
    return Trace("mix", block_tokens, ()).with_interactions(chosen)


def one_call(**fields):
    values = {"call_id": "0", "agent": "a", "deps": (), "gap_s": 0.0, "input_tokens": 20}
    return TraceCall(**{**values, "system_tokens": 0, "output_tokens": 3, **fields})


def trace_of(*chosen, **fields):
    values = {"tenant": "t", "app": "a", "user": "u", "arrival_s": 0.0}
    runs = [Interaction(str(i), calls=c, **{**values, **fields}) for i, c in enumerate(chosen)]
    return Trace("mix", 16, tuple(runs))


@given(trace=traces(), packed=st.booleans())
def test_a_written_trace_reads_back_equal(tmp_path_factory, trace, packed):
    path = tmp_path_factory.getbasetemp() / ("mix.jsonl.gz" if packed else "mix.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)  # a disk takes most of the time
        write_trace(trace, path)
    assert read_interactions(path) == trace


@pytest.mark.parametrize("name", ["mix.jsonl", "mix.jsonl.gz"])
def test_the_same_trace_gives_the_same_bytes(tmp_path, monkeypatch, name):
    trace = trace_of((one_call(),))
    for moment, folder in enumerate(["one", "two"]):
        monkeypatch.setattr("time.time", lambda moment=moment: 1e9 + moment)
        (tmp_path / folder).mkdir()
        write_trace(trace, tmp_path / folder / name)
    first, second = ((tmp_path / folder / name).read_bytes() for folder in ["one", "two"])
    assert first == second
    assert first.startswith(b"\x1f\x8b") is name.endswith(".gz")
    write_trace(trace, tmp_path / "other.jsonl.gz")  # the name is not part of the data
    if name.endswith(".gz"):
        assert (tmp_path / "other.jsonl.gz").read_bytes() == first


def test_the_text_equals_the_documented_one(tmp_path):
    calls = (one_call(blocks=((4, 1),)), one_call(call_id="1", deps=("0",), system_tokens=5))
    write_trace(trace_of(calls), tmp_path / "t.jsonl.gz")
    assert gzip.decompress((tmp_path / "t.jsonl.gz").read_bytes()).decode() == (
        '{"iid":"0","tenant":"t","app":"a","user":"u","arrival_s":0.0,"bs":16,"scope":"file","calls":['
        '{"id":"0","agent":"a","deps":[],"gap":0.0,"in":20,"sys":0,"out":3,"n":1,"blk":[[4,1]]},'
        '{"id":"1","agent":"a","deps":["0"],"gap":0.0,"in":25,"sys":5,"out":3,"n":1,"blk":[]}]}\n'
    )


GOOD = (one_call(),)
UNWRITABLE = {
    "empty": (trace_of(), "holds no interactions"),
    "no calls": (trace_of(GOOD, ()), ":2: calls must be a list of at least one call"),
    "no output": (trace_of(GOOD, (one_call(output_tokens=0),)), ":2: .* would not read back"),
    "no user": (trace_of(GOOD, user=""), ":1: user must be a string"),
    "nan": (trace_of(GOOD, arrival_s=float("nan")), ":1: arrival_s must be a finite number"),
    "unknown dep": (trace_of(GOOD, (one_call(deps=("9",)),)), ":2: .*unknown dependency"),
    "order": (
        trace_of((one_call(deps=("1",)), one_call(call_id="1"))),
        ":1: .* would not read back",
    ),
    "iid twice": (
        replace(trace_of(GOOD), interactions=trace_of(GOOD).interactions * 2),
        ":2: .* would not read back",
    ),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_an_unreadable_trace_is_not_written(tmp_path, case):
    trace, message = UNWRITABLE[case]
    path = tmp_path / "t.jsonl"
    path.write_text("what was there")
    with pytest.raises(TraceError, match=message):
        write_trace(trace, path)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    path.write_text("what was there")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TraceError, match=r"cannot be written \(No space left on device\)"):
        write_trace(trace_of(GOOD), path)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_trace(trace_of(GOOD), tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(trace_of(GOOD), tmp_path / "absent" / "t.jsonl")
