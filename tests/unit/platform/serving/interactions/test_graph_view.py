"""A run is shown as a graph, and as a picture in which client texts are never markup."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from call_records import call_record
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.programs.program import parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.tracking.graph import InteractionGraph
from fairserve.platform.control.messages import CallView
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.serving.interactions.drawing import (
    COLOURS,
    MOST_DRAWN,
    MOST_EDGES,
    MOST_ROWS,
    draw,
)
from fairserve.platform.serving.interactions.graph_shape import shape_of, time_waited
from fairserve.platform.serving.interactions.graph_view import graph_of
from fairserve.platform.serving.interactions.repository import GRAPH_COLUMNS
from fairserve.platform.serving.programs.schemas import program_out

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_700_000_000.0


def row(key, parents=(), *, stage=1, at=0.0, duration_s=1.0, **more):
    fields = {
        "call_id": f"id-{key}-{at}",
        "name": key,
        "parents": parents and list(parents),
        "agent": f"agent {key}",
        "stage": stage,
        "outcome": "completed",
        "model": "m",
        "served_model": "m-v2",
        "worker": "w0",
        "accepted_at": datetime.fromtimestamp(BEGIN + at, UTC),
        "queue_delay_s": 0.25,
        "ttft_s": 0.5,
        "duration_s": duration_s,
        "input_tokens": 10,
        "system_tokens": 2,
        "cached_tokens": 4,
        "output_tokens": 7,
        "reasoning_tokens": 3,
        "cost": 250_000_000,
        "service_tier": "flex",
        "error": "",
    }
    whole = LedgerCall(**{**fields, **more})
    selected = {column.key: getattr(whole, column.key) for column in GRAPH_COLUMNS}
    return SimpleNamespace(**selected)


def live(name, state="running", parents=(), *, stage=1, at=0.0, call_id=None):
    record = call_record(
        call_id or f"id-{name}-{at}",
        stage=stage,
        accepted_at=BEGIN + at,
        name=name,
        parents=tuple(parents),
    )
    return CallView(state, record)


def graph(rows=(), views=(), **page):
    return graph_of("r", "under_way", "ann", list(rows), views, **page)


def test_the_graph_has_calls_edges_and_the_critical_path():
    found = graph(
        [
            row("plan", duration_s=2.0),
            row("left", ["plan"], stage=2, at=2.5, duration_s=1.0),
            row("right", ["plan"], stage=2, at=2.5, duration_s=3.0),
        ],
        [live("sum", "queued", ["left", "right"], stage=3, at=6.0)],
    )
    assert found.edges == [("plan", "left"), ("plan", "right"), ("left", "sum"), ("right", "sum")]
    assert (found.stages, found.parallelism) == (3, 2)
    assert found.critical_path.calls == ["plan", "right", "sum"]
    assert found.critical_path.duration_s == 5.0
    assert found.cost == Decimal("0.75")
    first, *_, last = found.nodes
    assert first.model_dump() == {
        "id": "plan",
        "agent": "agent plan",
        "stage": 1,
        "state": "completed",
        "model": "m-v2",
        "worker": "w0",
        "begin_s": 0.0,
        "queue_s": 0.25,
        "ttft_s": 0.5,
        "duration_s": 2.0,
        "input_tokens": 12,
        "system_tokens": 2,
        "cached_tokens": 4,
        "output_tokens": 7,
        "reasoning_tokens": 3,
        "service_tier": "flex",
        "error": "",
    }
    assert (last.state, last.begin_s, last.ttft_s) == ("queued", 6.0, None)


def test_a_call_that_ended_meanwhile_is_listed_once():
    ended = row("a")
    found = graph([ended], [live("a", call_id=ended.call_id)])
    assert [node.state for node in found.nodes] == ["completed"]


def test_missing_parents_are_omitted():
    assert graph([row("b", ["deleted"], stage=2)]).edges == []


def test_a_reused_name_belongs_to_the_later_call():
    found = graph(
        [row("a"), row("b", ["a"], stage=2, at=1), row("a", stage=1, at=2), row("a", at=3)]
    )
    assert [node.id for node in found.nodes] == ["a", "b", "a (2)", "a (3)"]
    assert found.edges == [("a", "b")]


def test_a_run_without_calls_is_empty():
    found = graph()
    assert (found.nodes, found.stages, found.critical_path.calls) == ([], 0, [])
    assert "0 calls" in draw(found)


def test_pages_together_are_the_whole_graph():
    rows = [row("c0")]
    rows += [row(f"c{n}", [f"c{n // 2}"], stage=2, at=1.0 + n) for n in range(1, 21)]
    whole = graph(rows)
    pages = [graph(rows, limit=5, offset=offset) for offset in range(0, 25, 5)]
    assert [len(page.nodes) for page in pages] == [5, 5, 5, 5, 1]
    assert [node for page in pages for node in page.nodes] == whole.nodes
    assert [edge for page in pages for edge in page.edges] == whole.edges
    assert [call for page in pages for call in page.critical_path.calls] == (
        whole.critical_path.calls
    )
    for page in pages:
        assert (page.total, page.stages, page.parallelism) == (21, whole.stages, whole.parallelism)
        assert page.critical_path.length == len(whole.critical_path.calls)
        assert page.critical_path.duration_s == whole.critical_path.duration_s
    assert graph(rows, limit=5, offset=100).nodes == []


@given(st.data())
def test_the_shape_equals_that_of_the_interaction_graph(data):
    size = data.draw(st.integers(0, 12))
    parents = [
        sorted(data.draw(st.sets(st.integers(0, call - 1), max_size=3))) if call else []
        for call in range(size)
    ]
    durations_s = [data.draw(st.integers(0, 3)) * 1.0 for _ in range(size)]
    whole = InteractionGraph({str(n): [str(p) for p in each] for n, each in enumerate(parents)})
    path = whole.critical_path({str(n): each for n, each in enumerate(durations_s)})
    shape = shape_of(parents, durations_s)
    assert shape.parallelism == whole.parallelism
    assert [str(call) for call in shape.critical_path] == list(path.nodes)
    assert shape.duration_s == path.length


# --- the picture ------------------------------------------------------------------------------------


def texts(document):
    return [element.text for element in ElementTree.fromstring(document).iter(f"{SVG}text")]


def test_stages_are_columns_without_overlaps():
    found = graph(
        [
            row("plan"),
            *(row(f"w{n}", ["plan"], stage=2, at=1 + n / 10) for n in range(5)),
            row("sum", [f"w{n}" for n in range(5)], stage=3, at=9),
        ]
    )
    root = ElementTree.fromstring(draw(found))
    boxes = [
        (float(box.get("x")), float(box.get("y")))
        for box in root.iter(f"{SVG}rect")
        if box.find(f"{SVG}title") is not None
    ]
    assert len(set(boxes)) == 7
    columns = sorted({x for x, _ in boxes})
    assert [sum(x == column for x, _ in boxes) for column in columns] == [1, 5, 1]
    assert len(list(root.iter(f"{SVG}path"))) == len(found.edges) == 10
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 <= x <= width - 170 and 0 <= y <= height - 50 for x, y in boxes)
    assert "12 (4 cached) + 7 tokens" in texts(draw(found))
    assert "1.0 s, waited 250 ms" in texts(draw(found))


def test_a_stage_of_many_calls_takes_several_columns():
    size = 3 * MOST_ROWS
    workers = [row(f"w{n:03}", ["plan"], stage=2, at=1 + n / 100) for n in range(size)]
    last = row("sum", [each.name for each in workers[-64:]], stage=3, at=9)
    root = ElementTree.fromstring(draw(graph([row("plan"), *workers, last])))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    places = Counter(float(box.get("x")) for box in boxes)
    assert [places[x] for x in sorted(places)] == [1, *[MOST_ROWS] * 3, 1]
    assert len({(box.get("x"), box.get("y")) for box in boxes}) == size + 2
    assert len({box.get("y") for box in boxes}) == MOST_ROWS


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a & b", 'q"x', "]]>", "a\x00\x1b\ud800b"]
)
def test_client_texts_are_escaped(text):
    found = graph([row("a", agent=text, error=text, name=f"n {text}", worker=None)])
    found.id = text
    document = draw(found)
    root = ElementTree.fromstring(document.encode())
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "defs", "rect", "title", "text"),
    }
    shown = "".join(char if char.isprintable() else " " for char in text)
    assert any(shown[:20] in (each or "") for each in texts(document))


def test_each_state_has_its_colour():
    states = [row(state, outcome=state, at=n) for n, state in enumerate(COLOURS)]
    document = draw(graph(states))
    assert all(fill in document and line in document for fill, line in COLOURS.values())
    assert len({fill for fill, _ in COLOURS.values()}) == len(COLOURS)


def test_a_picture_is_bounded_and_states_it():
    rows = [row(f"c{n}", at=n) for n in range(MOST_DRAWN + 20)]
    document = draw(graph(rows))
    assert document.count("<title>") == MOST_DRAWN
    assert any("20 not drawn" in (each or "") for each in texts(document))
    rows = [row(f"c{n}", [f"c{p}" for p in range(n)][:64], stage=n + 1, at=n) for n in range(100)]
    found = graph(rows)
    document = draw(found)
    assert document.count("<path") == MOST_EDGES < len(found.edges)
    left_out = len(found.edges) - MOST_EDGES
    assert any(f"{left_out} edges not drawn" in (each or "") for each in texts(document))


DECLARED = {
    "model": "m",
    "nodes": [
        {"id": "list", "prompt": "x"},
        {"id": "each", "prompt": "{{item}}", "map": {"over": "list", "path": "some"}},
        {"id": "none", "prompt": "{{item}}", "map": {"over": "list", "path": "none"}},
        {
            "id": "maybe",
            "prompt": "y",
            "when": {"node": "list", "path": "go", "op": "equals", "value": True},
        },
        {"id": "last", "prompt": "{{each.output}}{{maybe.output}}{{none.output}}"},
    ],
}


def test_nodes_of_a_program_without_calls_are_shown():
    run = ProgramRun(parse_program(DECLARED))
    run.start()
    first = graph_of("r", "open", "u", [], [], program_out(run, ""))
    assert [(node.id, node.state) for node in first.nodes] == [
        *(("list", "waiting"), ("each", "waiting"), ("none", "waiting")),
        *(("maybe", "waiting"), ("last", "waiting")),
    ]
    assert first.stages == 3
    assert ("each", "last") in first.edges

    run.succeeded("list", '{"some": ["a", "b"], "none": [], "go": false}')
    run.succeeded("each[1]", "done")
    rows = [row("list"), row("each[1]", ["list"], stage=2, at=1.0)]
    calls = [live("each[0]", "queued", ["list"], stage=2, at=1.1)]
    found = graph_of("r", "under_way", "u", rows, calls, program_out(run, ""))
    assert {node.id: node.state for node in found.nodes} == {
        "list": "completed",
        "each[1]": "completed",
        "each[0]": "queued",
        "maybe": "skipped",
        "none": "done",
        "last": "waiting",
    }
    assert sorted(parent for parent, child in found.edges if child == "last") == [
        *("each[0]", "each[1]", "maybe", "none")
    ]
    document = draw(found)
    assert "skipped" in document
    ElementTree.fromstring(document)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 12)] * 3).map(lambda t: (t[0], t[1], t[1] + t[2])), max_size=8
    )
)
def test_the_time_in_which_calls_only_wait(times):
    """Compare with a count of whole seconds."""
    span_s, waited_s = time_waited(times)
    ends = [begin + duration for begin, _, duration in times]
    assert span_s == (max(ends) - min(begin for begin, *_ in times) if times else 0)
    found = 0
    for second in range(max(ends, default=0)):
        waits = any(begin <= second < begin + waited for begin, waited, _ in times)
        runs = any(begin + waited <= second < begin + duration for begin, waited, duration in times)
        found += waits and not runs
    assert waited_s == found


def test_a_call_that_waits_has_waited_so_far():
    waiting, running = live("a", "queued"), live("b", at=1.0)
    graph = graph_of("run", "under_way", "u", [row("c", duration_s=4.0)], [])
    assert (graph.span_s, graph.waited_s) == (4.0, 0.25)
    assert graph.nodes[0].waited_s == 0.25
    queued = CallView("held", replace(waiting.record, duration_s=3.0))
    began = CallView("running", replace(running.record, queue_delay_s=1.0, duration_s=2.0))
    graph = graph_of("run", "under_way", "u", [], [queued, began])
    assert [node.waited_s for node in graph.nodes] == [3.0, 1.0]
    assert (graph.span_s, graph.waited_s) == (3.0, 2.0)
