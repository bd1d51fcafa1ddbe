"""A recording converts into a trace: dependencies, gaps, shared prefixes, and omitted runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_calls import (
    BLOCK,
    OPENED_AT,
    ended,
    exported,
    graph,
    writer,
)

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.traces.interaction_file import write_trace
from fairserve.platform.reporting.traffic import lines
from fairserve.platform.reporting.traffic.export import export
from fairserve.platform.reporting.traffic.lines import (
    LineEncoder,
    Pseudonyms,
    decode_lines,
)
from fairserve.platform.reporting.traffic.segments import read_recording
from fairserve.scheduling.locality.block_keys import BlockHasher


def test_recorded_parents_are_kept(tmp_path):
    result = exported(
        tmp_path,
        ended("a", 0.0, 1.0, deps=[]),
        ended("b", 2.0, 3.0, deps=[]),
        ended("c", 4.0, 5.0, deps=["a"], stage=2),
        ended("d", 4.5, 6.0, deps=["c", "b"], stage=3),
    )
    assert graph(result) == {
        "1": ([], 0.0),
        "2": ([], 2.0),  # a root: its gap counts from the arrival of the run
        "3": (["1"], 3.0),
        "4": (["3", "2"], 0.0),  # submitted before its parent ended
    }


def test_calls_are_sorted_by_start_time(tmp_path):
    result = exported(
        tmp_path,
        ended("late", 3.0, 4.0, stage=2, deps=["first"]),
        ended("first", 0.0, 9.0, deps=[]),
    )
    assert graph(result) == {"1": ([], 0.0), "2": (["1"], 0.0)}


def test_children_of_an_omitted_call_depend_on_its_parents(tmp_path):
    result = exported(
        tmp_path,
        ended("a", 0.0, 1.0, deps=[]),
        ended("b", 1.0, 2.0, deps=["a"], stage=2, output_tokens=0),
        ended("c", 2.5, 4.0, deps=["b"], stage=3),
    )
    assert graph(result) == {"1": ([], 0.0), "2": (["1"], 1.5)}
    assert result.empty_calls == 1
    nothing = exported(tmp_path / "other", ended(output_tokens=0))
    assert not nothing.trace.interactions


def test_a_run_with_a_missing_call_is_omitted(tmp_path):
    calls = [ended("b", 1.0, 2.0, run="cut", deps=["a"], stage=2), ended(run="whole")]
    result = exported(tmp_path, *calls)
    assert (len(result.trace), result.incomplete_runs) == (1, 1)


def test_earlier_runs_are_omitted_and_arrivals_count_from_the_first(tmp_path):
    runs = [ended(run=f"r{n}", begin_s=n, end_s=n + 1.0, opened_at=OPENED_AT + n) for n in range(5)]
    result = exported(tmp_path, *runs, since_at=OPENED_AT + 2)
    assert [run.arrival_s for run in result.trace.interactions] == [0.0, 1.0, 2.0]
    assert result.begin_at == OPENED_AT + 2


def test_a_reused_run_name_is_another_run(tmp_path):
    again = ended(begin_s=50.0, end_s=51.0, opened_at=OPENED_AT + 50)
    result = exported(tmp_path, ended(), again)
    assert [len(run.calls) for run in result.trace.interactions] == [1, 1]


def test_token_counts_are_kept_and_output_is_divided_among_samples(tmp_path):
    result = exported(tmp_path, ended(output_tokens=7, samples=3, agent="planner"))
    [[call]] = [run.calls for run in result.trace.interactions]
    assert (call.input_tokens, call.system_tokens) == (30, 10)
    assert (call.output_tokens, call.samples) == (3, 3)


def test_client_names_are_pseudonyms(tmp_path):
    calls = [
        ended("my-call", run="my-run", user="alice", agent="planner"),
        ended(run="r2", user="alice", agent="planner"),
        ended(run="r3", user="bob"),
        ended(run="r4", user="alice", tenant="tn_2"),
    ]
    result = exported(tmp_path, *calls)
    users = [run.user for run in result.trace.interactions]
    assert users[0] == users[1]
    assert len(set(users)) == 3
    write_trace(result.trace, tmp_path / "trace.jsonl")
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    for name in (b"alice", b"bob", b"planner", b"my-call", b"my-run"):
        assert not any(name in text for text in written)
    other = exported(tmp_path / "other", *calls)  # each folder has its own salt
    assert not set(users) & {run.user for run in other.trace.interactions}


def test_ids_are_equal_exactly_for_equal_prefixes(tmp_path):
    result = exported(
        tmp_path,
        ended(run="a", keys=[11, 12, 13]),
        ended(run="b", keys=[11, 12, 23, 24]),
        ended(run="c", keys=[31]),
        ended(run="d", keys=[11, 12, 13, 14]),
        ended(run="e"),
    )
    blocks = [run.calls[0].blocks for run in result.trace.interactions]
    assert blocks == [((1, 3),), ((1, 2), (4, 2)), ((6, 1),), ((1, 3), (7, 1)), ()]


def test_a_worker_that_counts_fewer_tokens_has_fewer_blocks(tmp_path):
    result = exported(tmp_path, ended(keys=range(100, 110), prompt_tokens=4 * BLOCK + 3))
    assert result.trace.interactions[0].calls[0].blocks == ((1, 4),)


PROMPTS = st.lists(
    st.tuples(st.sampled_from(["", "tenant-a"]), st.lists(st.integers(0, 2), max_size=6 * BLOCK)),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("known", [3, 20, lines.KNOWN_KEYS])
@given(prompts=PROMPTS)
def test_ids_agree_with_the_prompts(known, prompts):
    """Compare the ids with the prompts, for any size of the encoder's memory."""
    hasher = BlockHasher(5, BLOCK)
    encoder = LineEncoder(Pseudonyms(b"salt"), known_keys=known)
    written = []
    for number, (salt, tokens) in enumerate(prompts):
        keys = hasher.keys(np.asarray(tokens, dtype=np.uint32), salt)
        written.append(encoder.line(ended(run=str(number), begin_s=number, keys=keys)))
    calls, damaged = decode_lines(written)
    assert not damaged
    trace = export(calls, BLOCK, 0.0).trace
    prefix_by_id, id_by_prefix = {}, {}
    for (salt, tokens), run in zip(prompts, trace.interactions, strict=True):
        ids = list(run.calls[0].block_ids)
        assert len(ids) == len(tokens) // BLOCK
        for number, block_id in enumerate(ids, start=1):
            prefix = (salt, *tokens[: number * BLOCK])
            assert prefix_by_id.setdefault(block_id, prefix) == prefix
            assert id_by_prefix.setdefault(prefix, block_id) == block_id
    assert sorted(prefix_by_id) == list(range(1, len(prefix_by_id) + 1))


def test_a_prefix_is_found_again_after_more_keys_than_the_table_has():
    encoder = LineEncoder(Pseudonyms(b"salt"), known_keys=1000)
    prefix = list(range(10))  # in the first ten places, which no other key here has
    encoder.line(ended(keys=prefix))
    for number in range(30):
        others = [1000 * number + place for place in range(10, 110)]
        encoder.line(ended(keys=others))
    assert b'"like":[0,10],"keys":""' in encoder.line(ended(keys=prefix))


@st.composite
def runs(draw):
    """Draw the calls of one run in virtual time; each waits for some of the ended ones."""
    begins = draw(st.lists(st.integers(0, 50), min_size=1, max_size=12, unique=True))
    calls, ends, stages = [], {}, {}
    for begin in sorted(begins):
        name = f"c{begin}"
        over = [other for other in ends if ends[other] <= begin]
        deps = draw(st.lists(st.sampled_from(over), unique=True)) if over else []
        stages[name] = 1 + max((stages[other] for other in deps), default=0)
        ends[name] = begin + draw(st.integers(1, 20)) + 0.5
        calls.append(ended(name, begin, ends[name], deps=deps, stage=stages[name]))
    return calls


def exported_run(calls, lines_of):
    """Return each call's parents in the trace; check that gaps count from their last end."""
    found, damaged = decode_lines(lines_of)
    assert not damaged
    [run] = export(found, BLOCK, 0.0).trace.interactions
    parents = [[calls[int(dep) - 1] for dep in call.deps] for call in run.calls]
    for call, recorded, own in zip(run.calls, calls, parents, strict=True):
        ready_at = max((parent.end_at for parent in own), default=calls[0].begin_at)
        assert call.gap_s == pytest.approx(recorded.begin_at - ready_at)
    return list(zip(calls, parents, strict=True))


@given(runs(), st.randoms())
def test_the_graph_of_a_run_is_reconstructed(calls, rng):
    """The calls may end in any order."""
    encoder = LineEncoder(Pseudonyms(b"salt"))
    lines_of = [encoder.line(call) for call in rng.sample(calls, len(calls))]
    for call, parents in exported_run(calls, lines_of):
        assert tuple(parent.call for parent in parents) == call.deps


def test_the_trace_survives_a_round_trip(tmp_path):
    result = exported(
        tmp_path,
        ended("a", 0.0, 1.123456789, keys=[1, 2]),
        ended("b", 2.2, 3.3, deps=["a"], stage=2, keys=[1, 2, 3], agent="x"),
        ended(run="other", begin_s=0.3333333333),
    )
    write_trace(result.trace, tmp_path / "out.jsonl.gz")
    back = read_trace(tmp_path / "out.jsonl.gz")
    assert back.interactions == result.trace.interactions


def test_damaged_lines_and_their_dependents_are_skipped(tmp_path):
    writer(tmp_path).write(
        [ended(run="a", keys=[1]), ended(run="b", keys=[1, 2]), ended(run="c", keys=[9])]
    )
    [path] = tmp_path.glob("traffic-*.jsonl")
    first, a, b, c = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + a[:50] + b"\n" + b + c + c[:30])
    calls, _, damaged = read_recording(tmp_path, 0.0)
    assert (len(calls), damaged) == (1, 2)  # the last line is incomplete
