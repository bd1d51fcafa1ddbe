"""Test the interaction format field by field: meanings, defaults, and errors that name the line."""

import json

import pytest

from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.interaction_file import read_interactions
from fairserve.engine.simulated.traces.model import Interaction, TraceCall, TraceError


def call(**fields):
    return {"id": 0, "agent": "main", "deps": [], "in": 40, "out": 5, **fields}


def run(*calls, **fields):
    return {"iid": "a", "bs": 16, "calls": list(calls) or [call()], **fields}


def written(tmp_path, *records):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def read_one(tmp_path, record, **options):
    (interaction,) = read_interactions(written(tmp_path, record), **options).interactions
    return interaction


def test_every_field_is_read(tmp_path):
    record = {
        "iid": "r",
        "tenant": "t",
        "app": "a",
        "user": "u",
        "arrival_s": 2,
        "bs": 8,
        "scope": "session",
        "group": "abusive",
        "calls": [
            {**call(id=7), "gap": 1.5, "in": 40, "sys": 16, "n": 3, "blk": [[5, 2], [9, 3]]},
            {**call(id="x", deps=[7]), "agent": "judge"},
        ],
    }
    trace = read_interactions(written(tmp_path, record))
    assert (trace.name, trace.block_tokens) == ("t", 8)
    assert trace.interactions == (
        Interaction(
            interaction_id="r",
            tenant="t",
            app="a",
            user="u",
            arrival_s=2.0,
            calls=(
                TraceCall("7", "main", (), 1.5, 24, 16, 5, 3, ((5, 2), (9, 3))),
                TraceCall("x", "judge", ("7",), 0.0, 40, 0, 5, 1, ()),
            ),
            scope="session",
            group="abusive",
        ),
    )
    assert list(trace.interactions[0].calls[0].block_ids) == [5, 6, 9, 10, 11]


@pytest.mark.parametrize("absent", [{}, dict.fromkeys(["tenant", "user", "app", "arrival_s"])])
def test_missing_or_null_fields_get_defaults(tmp_path, absent):
    record = {"iid": "a", "bs": 16, "calls": [{"id": 0, "in": 40, "out": 5, "gap": None}], **absent}
    assert read_one(tmp_path, record) == Interaction(
        interaction_id="a",
        tenant="default",
        app="default",
        user="default",
        arrival_s=0.0,
        calls=(TraceCall("0", "default", (), 0.0, 40, 0, 5),),
    )
    chosen = read_one(tmp_path, record, defaults=Defaults("t", "u", arrival_s=3.0, gap_s=4.0))
    assert (chosen.tenant, chosen.user, chosen.arrival_s) == ("t", "u", 3.0)
    assert chosen.calls[0].gap_s == 4.0


def test_defaults_do_not_replace_values(tmp_path):
    record = run(call(gap=0), tenant="t", user=5, arrival_s=0)
    one = read_one(tmp_path, record, defaults=Defaults("x", "y", arrival_s=3.0, gap_s=4.0))
    assert (one.tenant, one.user, one.arrival_s, one.calls[0].gap_s) == ("t", "5", 0.0, 0.0)


@pytest.mark.parametrize(
    "bad", [{"tenant": ""}, {"user": ""}, {"arrival_s": -1.0}, {"gap_s": float("nan")}]
)
def test_invalid_defaults_are_rejected(bad):
    with pytest.raises(TraceError, match=f"default {next(iter(bad))}"):
        Defaults(**bad)


def test_unknown_keys_are_ignored(tmp_path):
    assert read_one(tmp_path, run(call(dur=3, m="x"), src="y", nsub=0)) == read_one(tmp_path, run())


def test_an_empty_output_counts_as_one_token(tmp_path):
    assert read_one(tmp_path, run(call(out=0))).calls[0].output_tokens == 1


def test_a_prompt_may_consist_of_blocks_and_system_tokens(tmp_path):
    one = read_one(tmp_path, run(call(**{"in": 32}, sys=32, blk=[[0, 2]]))).calls[0]
    assert (one.input_tokens, one.system_tokens, one.prompt_tokens) == (0, 32, 32)


def test_interactions_are_sorted_stably_by_arrival(tmp_path):
    records = [run(iid=iid, arrival_s=at) for iid, at in [("a", 2), ("b", 1), ("c", 2), ("d", 1)]]
    trace = read_interactions(written(tmp_path, *records))
    assert [i.interaction_id for i in trace.interactions] == ["b", "d", "a", "c"]


def test_calls_are_sorted_stably_after_their_dependencies(tmp_path):
    calls = [call(id=i, deps=d) for i, d in [(0, [3]), (1, []), (2, [0, 0, 1]), (3, []), (4, [])]]
    one = read_one(tmp_path, run(*calls))
    assert [c.call_id for c in one.calls] == ["1", "3", "0", "2", "4"]
    assert one.calls[3].deps == ("0", "1")


BAD_INTERACTIONS = {
    "calls missing": (lambda r: r.pop("calls"), "calls must be a list of at least one call"),
    "calls empty": ({"calls": []}, "calls must be a list of at least one call"),
    "calls no list": ({"calls": {}}, "calls must be a list of at least one call"),
    "call no object": ({"calls": [3]}, r"calls\[0\] must be an object, got 3"),
    "bs missing": (lambda r: r.pop("bs"), "bs must be an integer of at least 1, got None"),
    "bs zero": ({"bs": 0}, "bs must be an integer of at least 1, got 0"),
    "bs differs": ({"bs": 32}, "bs 32, but 16 above"),
    "iid missing": (lambda r: r.pop("iid"), "iid must be a string or an integer"),
    "iid empty": ({"iid": ""}, "iid must be a string or an integer"),
    "iid twice": ({"iid": "first"}, "iid 'first' is also in line 1"),
    "tenant": ({"tenant": []}, "tenant must be a string or an integer"),
    "user": ({"user": True}, "user must be a string or an integer"),
    "app": ({"app": ""}, "app must be a string or an integer"),
    "group": ({"group": 3}, "group must be a string, got 3"),
    "scope": ({"scope": "app"}, 'scope \'app\'; allowed are "file", "session"'),
    "scope list": ({"scope": []}, r"scope \[\]; allowed are"),
    "arrival negative": ({"arrival_s": -1}, "arrival_s must be a finite number of at least 0"),
    "arrival nan": ({"arrival_s": float("nan")}, "arrival_s must be a finite number"),
    "arrival text": ({"arrival_s": "3"}, "arrival_s must be a finite number"),
}
BAD_CALLS = {
    "id missing": (lambda c: c.pop("id"), r"calls\[0\]\.id must be a string or an integer"),
    "id bool": ({"id": True}, r"calls\[0\]\.id must be a string or an integer"),
    "agent": ({"agent": 1.5}, "call 0: agent must be a string"),
    "deps": ({"deps": 1}, "call 0: deps must be a list of ids, got 1"),
    "deps null": ({"deps": None}, "call 0: deps must be a list of ids, got None"),
    "dep null": ({"deps": [None]}, "call 0: deps must be a string or an integer"),
    "dep unknown": ({"deps": [5]}, "call 0: unknown dependency '5'"),
    "dep itself": ({"deps": [0]}, "deps form a cycle: 0 -> 0"),
    "gap negative": ({"gap": -0.5}, "call 0: gap must be a finite number of at least 0, got -0.5"),
    "gap infinite": ({"gap": float("inf")}, "call 0: gap must be a finite number"),
    "in missing": (lambda c: c.pop("in"), "call 0: in must be an integer of at least 1, got None"),
    "in zero": ({"in": 0}, "call 0: in must be an integer of at least 1, got 0"),
    "in bool": ({"in": True}, "call 0: in must be an integer of at least 1, got True"),
    "in float": ({"in": 40.0}, "call 0: in must be an integer of at least 1, got 40.0"),
    "sys more than in": ({"sys": 41}, "call 0: sys 41 exceeds in 40"),
    "sys negative": ({"sys": -1}, "call 0: sys must be an integer of at least 0"),
    "out missing": (lambda c: c.pop("out"), "call 0: out must be an integer of at least 0"),
    "out negative": ({"out": -1}, "call 0: out must be an integer of at least 0, got -1"),
    "n zero": ({"n": 0}, "call 0: n must be an integer of at least 1, got 0"),
    "blk no list": ({"blk": 5}, "call 0: blk must be a list of"),
    "blk no runs": ({"blk": [1, 2]}, r"call 0: blk must hold \[start, count\], got 1"),
    "blk triple": ({"blk": [[1, 1, 1]]}, r"call 0: blk must hold \[start, count\]"),
    "blk count": ({"blk": [[1, 0]]}, "call 0: a count of blk must be an integer of at least 1"),
    "blk start": ({"blk": [[-1, 1]]}, "call 0: a start of blk must be an integer of at least 0"),
    "blk too many": ({"blk": [[1, 3]]}, "call 0: blk holds 3 blocks, the prompt has 2 full ones"),
    "blk twice": ({"blk": [[1, 1], [1, 1]]}, "call 0: blk holds an id twice"),
}


def assert_line_two_is_rejected(tmp_path, record, message):
    path = written(tmp_path, run(iid="first"), record, run(iid="last"))
    with pytest.raises(TraceError, match=message) as caught:
        read_interactions(path)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("case", BAD_INTERACTIONS)
def test_errors_of_interactions_name_the_line(tmp_path, case):
    change, message = BAD_INTERACTIONS[case]
    record = run(iid="second")
    change(record) if callable(change) else record.update(change)
    assert_line_two_is_rejected(tmp_path, record, message)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_errors_of_calls_name_the_line(tmp_path, case):
    change, message = BAD_CALLS[case]
    one = call()
    change(one) if callable(change) else one.update(change)
    assert_line_two_is_rejected(tmp_path, run(one, iid="second"), message)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([(0, [1]), (1, [0])], "deps form a cycle: 0 -> 1 -> 0$"),
        ([("root", []), (0, ["root", 2]), (1, [0]), (2, [1])], "cycle: 0 -> 2 -> 1 -> 0$"),
        ([(9, [2]), (1, [2]), (2, [1])], "cycle: 2 -> 1 -> 2$"),  # 9 only leads to the cycle
        ([(i, [(i + 1) % 20]) for i in range(20)], r"0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> \.\.\.$"),
        ([(1, []), ("1", [])], "call 1: the id occurs twice in the interaction"),
    ],
)
def test_impossible_graphs_are_rejected(tmp_path, graph, message):
    calls = [call(id=call_id, deps=deps) for call_id, deps in graph]
    assert_line_two_is_rejected(tmp_path, run(*calls, iid="second"), message)


def test_invalid_json_names_the_line(tmp_path):
    path = written(tmp_path, run())
    path.write_text(path.read_text() + '{"iid": "b", \n')
    with pytest.raises(TraceError, match=r"t\.jsonl:2: not JSON"):
        read_interactions(path)


def test_a_file_without_interactions_is_rejected(tmp_path):
    with pytest.raises(TraceError, match=r"t\.jsonl:1: holds no interactions"):
        read_interactions(written(tmp_path))
