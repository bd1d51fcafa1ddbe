"""Dependencies are inferred from repeated outputs and from times: chains, fans, agents."""

import json

from hypothesis import given
from hypothesis import strategies as st
from otel_documents import assistant, chat, span, system, user, write_spans

from fairserve.benchmarks.traces.reading import read_trace

PLAN = "First I would look at the orders, then at the refunds."
ORDERS = "There were 14 orders, 2 of them late."
REFUNDS = "No refunds were asked for in that week."


def dependencies(tmp_path, *spans):
    (interaction,) = read_trace(write_spans(tmp_path / "run.json", *spans)).interactions
    return {call.call_id: call.deps for call in interaction.calls}


def test_a_chain_keeps_direct_dependencies_only(tmp_path):
    history = [user("Plan?"), assistant(PLAN), user("Orders?"), assistant(ORDERS), user("Refunds?")]
    assert (
        dependencies(
            tmp_path,
            chat("c", 4, 5, history, REFUNDS),  # the order of the file does not matter
            chat("a", 0, 1, history[:1], PLAN),
            chat("b", 2, 3, history[:3], ORDERS),
        )
        == {"a": (), "b": ("a",), "c": ("b",)}
    )


def test_fan_out_and_fan_in_are_found_by_text(tmp_path):
    both = [
        user("Plan?"),
        assistant(PLAN),
        assistant(ORDERS),
        assistant(REFUNDS),
        user("In short?"),
    ]
    assert dependencies(
        tmp_path,
        chat("plan", 0, 1, [user("Plan?")], PLAN),
        chat("orders", 2, 3, [user(f"By this plan: {PLAN} Orders?")], ORDERS),
        chat("refunds", 2, 5, [user(f"By this plan: {PLAN} Refunds?")], REFUNDS),
        chat("sum", 6, 7, both, "All is well."),
    ) == {"plan": (), "orders": ("plan",), "refunds": ("plan",), "sum": ("orders", "refunds")}


def test_a_call_that_had_not_ended_is_no_dependency(tmp_path):
    assert dependencies(
        tmp_path,
        chat("a", 0, 3, [user("Plan?")], PLAN),
        chat("b", 2, 4, [assistant(PLAN)], ORDERS),  # the same words by chance, or streamed
        chat("c", 3, 5, [assistant(PLAN)], REFUNDS),  # in the moment of its end
    ) == {"a": (), "b": (), "c": ("a",)}


def test_a_short_output_is_found_only_as_an_answer(tmp_path):
    assert dependencies(
        tmp_path,
        chat("a", 0, 1, [user("All well?")], "yes"),
        chat("b", 0, 1, [user("How many?")], "14"),
        chat("c", 2, 3, [user("yesterday 14 were sent"), assistant(" yes\n")], REFUNDS),
        chat("d", 2, 3, [user("14"), assistant("yes")], REFUNDS),
        chat("e", 2, 3, [assistant("yes"), assistant("14")], REFUNDS),
    ) == {"a": (), "b": (), "c": ("a",), "d": ("a",), "e": ("a", "b")}


def test_tool_calls_are_found_like_texts(tmp_path):
    call = {"type": "tool_call", "name": "orders", "arguments": {"week": 18, "late": True}}
    turned = {"type": "tool_call", "arguments": {"late": True, "week": 18}, "name": "orders"}
    output = {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [call]}])}
    assert dependencies(
        tmp_path,
        chat("ask", 0, 1, [user("Orders?")], None, output),
        chat("other", 1, 3, [user("Refunds?")], REFUNDS),
        chat("go", 4, 5, [{"role": "assistant", "parts": [turned]}, assistant(REFUNDS)], ORDERS),
    ) == {"ask": (), "other": (), "go": ("ask", "other")}


def test_an_unrepeated_output_is_a_dependency_by_time(tmp_path):
    assert dependencies(
        tmp_path,
        chat("a", 0, 1, [user("Plan?")], PLAN),
        chat("asked", 2, 3, [system("Look at orders."), user("Do.")], ORDERS),
        chat("asked too", 2, 4, [system("Look at refunds."), user("Do.")], REFUNDS),
        chat("sum", 5, 6, [assistant(PLAN), user("They are done. In short?")], "All is well."),
    ) == {"a": (), "asked": ("a",), "asked too": ("a",), "sum": ("asked", "asked too")}


def test_parallel_questions_are_independent(tmp_path):
    both = [user("1?"), assistant(ORDERS), user("2?"), assistant(REFUNDS), user("Compare.")]
    spans = [
        chat("one", 0, 1, [user("1?")], ORDERS),
        chat("two", 2, 3, [user("2?")], REFUNDS),
        chat("both", 4, 5, both, "Alike."),
    ]
    apart = {"one": (), "two": (), "both": ("one", "two")}
    chain = {"one": (), "two": ("one",), "both": ("two",)}
    assert dependencies(tmp_path, *spans) == apart
    # A helper with its own task, or a continued conversation, does wait.
    helper = chat("two", 2, 3, [system("You count refunds."), user("2?")], REFUNDS)
    assert dependencies(tmp_path, spans[0], helper, spans[2]) == chain
    agent = chat("two", 2, 3, [user("2?")], REFUNDS, {"gen_ai.agent.name": "other"})
    assert dependencies(tmp_path, spans[0], agent, spans[2]) == chain
    shortened = chat("two", 2, 3, [user("1?"), assistant("14, 2 late"), user("2?")], REFUNDS)
    assert dependencies(tmp_path, spans[0], shortened, spans[2]) == chain


def test_without_texts_times_determine_dependencies(tmp_path):
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 10}
    times = {"a": (0, 2), "b": (1, 3), "c": (3, 4), "d": (3, 6), "e": (5, 6), "f": (7, 8)}
    assert dependencies(
        tmp_path, *(chat(name, *time, attributes=usage) for name, time in times.items())
    ) == {"a": (), "b": (), "c": ("a", "b"), "d": ("a", "b"), "e": ("c",), "f": ("d", "e")}


def test_overlapping_agents_are_independent(tmp_path):
    def asked(name, start, end, parent):
        return chat(name, start, end, [user(f"{name}?")], f"{name} is done.", parent_span_id=parent)

    assert dependencies(
        tmp_path,
        span("main", 0, 20),
        asked("plan", 0, 1, "main"),
        span("x", 2, 8, parent_span_id="main"),
        asked("x1", 2, 3, "x"),
        asked("x2", 4, 5, "x"),
        span("y", 3, 9, parent_span_id="main"),
        asked("y1", 6, 7, "y"),  # after all calls of x, but beside x
        span("z", 10, 12, parent_span_id="main"),
        asked("z1", 10, 11, "z"),
    ) == {"plan": (), "x1": ("plan",), "x2": ("x1",), "y1": ("plan",), "z1": ("x2", "y1")}


def test_the_parent_span_may_be_outside_the_file(tmp_path):
    assert dependencies(
        tmp_path,
        chat("a", 0, 1, [user("Plan?")], PLAN, parent_span_id="lost"),
        chat("b", 2, 3, [user("Do.")], ORDERS, parent_span_id="lost"),
        chat("c", 4, 5, [user("Go.")], ORDERS, parent_span_id="lost too"),
    ) == {"a": (), "b": ("a",), "c": ("b",)}


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 8), st.sets(st.integers(0, 9)), st.booleans()),
        min_size=1,
        max_size=10,
    )
)
def test_dependencies_are_direct_and_ended_calls(tmp_path_factory, runs):
    """Calls (start, length, the call whose output the prompt repeats), each in a separate branch."""
    words = [f"This is what call number {index} said." for index in range(10)]
    spans = [span("branch", 0, 30)]
    for index, (start, length, repeated, apart) in enumerate(runs):
        prompt = [user("Go."), *(assistant(words[other]) for other in sorted(repeated))]
        parent = "branch" if apart else None
        end = start + length
        spans.append(chat(str(index), start, end, prompt, words[index], parent_span_id=parent))
    path = write_spans(tmp_path_factory.getbasetemp() / "any.json", *spans)
    (interaction,) = read_trace(path).interactions
    times = {str(i): (start, start + length) for i, (start, length, *_) in enumerate(runs)}
    implied = {}
    for call in interaction.calls:
        assert set(call.deps) <= implied.keys(), "dependencies come first"
        start_s = times[call.call_id][0]
        ends_s = [times[dep][1] for dep in call.deps]
        assert max(ends_s, default=0) + call.gap_s == start_s
        assert call.gap_s >= 0
        assert not any(one in implied[other] for one in call.deps for other in call.deps)
        implied[call.call_id] = set(call.deps).union(*(implied[dep] for dep in call.deps))
        for other in runs[int(call.call_id)][2]:
            earlier = str(other) in implied and str(other) != call.call_id
            if earlier and times[str(other)][1] <= start_s:
                assert str(other) in implied[call.call_id]
