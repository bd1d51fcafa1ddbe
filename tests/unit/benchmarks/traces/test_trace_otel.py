"""OpenTelemetry spans are read as interactions: calls, names, times, tokens, blocks."""

import gzip
import json

import pytest
from otel_documents import assistant, chat, exported, span, system, user, write_spans

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.interaction_file import write_trace
from fairserve.engine.simulated.traces.model import Interaction, TraceCall
from fairserve.platform.server import cli

QUESTION = [system("Be brief, and be kind."), user("What is a hash table?")]
ANSWER = "An array of keys and values, found by a hash of the key."
USAGE = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 7}


def read(tmp_path, *spans, **options):
    return read_trace(write_spans(tmp_path / "run.json", *spans), **options)


def only_call(tmp_path, *args, **changes):
    (interaction,) = read(tmp_path, chat("a", 0, 1, *args, **changes)).interactions
    (call,) = interaction.calls
    return call


def test_a_run_of_two_turns_is_read(tmp_path):
    follow = [*QUESTION, assistant(ANSWER), user("And its cost?")]
    trace = read(
        tmp_path,
        chat("a", 1, 2.5, QUESTION, ANSWER, resource_attributes={"service.name": "desk"}),
        chat("b", 3, 4, follow, "Constant.", resource_attributes={"service.name": "desk"}),
        defaults=Defaults(tenant="acme", user="nobody"),
    )
    assert (trace.name, trace.block_tokens) == ("run", 16)
    # 43 characters in the first prompt, 22 of them of the system; 112 in the second.
    assert trace.interactions == (
        Interaction(
            "t",
            "acme",
            "desk",
            "nobody",
            0.0,
            (
                TraceCall("a", "desk", (), 0.0, 5, 6, 14),
                TraceCall("b", "desk", ("a",), 0.5, 22, 6, 3, 1, ((0, 1),)),
            ),
        ),
    )


def test_a_trace_of_spans_can_be_written_without_texts(tmp_path):
    trace = read(tmp_path, chat("a", 0, 1, QUESTION, ANSWER))
    write_trace(trace, tmp_path / "ours.jsonl")
    assert read_trace(tmp_path / "ours.jsonl").interactions == trace.interactions
    everything = (tmp_path / "ours.jsonl").read_text() + repr(trace)
    assert not any(word in everything for word in ("hash", "kind", "array"))


@pytest.mark.parametrize("shape", ["document", "one line", "otlp", "otlp lines", "gzip"])
def test_all_encodings_give_the_same_trace(tmp_path, shape):
    resource = {"resource_attributes": {"service.name": "shop"}}
    spans = [
        span("agent", 0, 9, attributes={"gen_ai.agent.name": "clerk"}, **resource),
        chat("a", 0.5, 1, QUESTION, ANSWER, USAGE, parent_span_id="agent", **resource),
        chat("b", 2.25, 3, [user(ANSWER)], "So.", parent_span_id="agent", **resource),
    ]
    expected = read(tmp_path, *spans).interactions
    path = tmp_path / "other.json"
    if shape == "one line":
        write_spans(path, *spans, indent=None)
    elif shape == "otlp":
        path.write_text(json.dumps(exported(*spans), indent=1))
    elif shape == "otlp lines":
        path.write_text("".join(f"{json.dumps(exported(one))}\n" for one in spans))
    else:
        write_spans(path, *spans)
    if shape == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(path).interactions == expected
    assert [call.gap_s for call in expected[0].calls] == [0.5, 1.25]


@pytest.mark.parametrize(
    "time",
    ["2026-05-04T10:00:00Z", "2026-05-04T12:00:00+02:00", 1_777_888_800 * 10**9],
)
def test_times_have_a_zone_or_are_nanoseconds(tmp_path, time):
    trace = read(
        tmp_path,
        chat("a", 0, 1, QUESTION, ANSWER, start_time=time),
        chat("b", 3, 4, QUESTION, ANSWER, trace_id="u"),
    )
    assert [i.arrival_s for i in trace.interactions] == [0.0, 3.0]


def test_calls_are_recognised_by_their_operation_or_their_messages(tmp_path):
    asked = {"gen_ai.input.messages": QUESTION, "gen_ai.output.text": ANSWER}  # not as JSON text
    spans = [
        span(name, second, second + 1, attributes={**asked, **operation})
        for second, (name, operation) in enumerate(
            {
                "chat": {"gen_ai.operation.name": "chat"},
                "completion": {"gen_ai.operation.name": "text_completion"},
                "content": {"gen_ai.operation.name": "generate_content"},
                "unnamed": {},
                "agent": {"gen_ai.operation.name": "invoke_agent"},
                "tool": {"gen_ai.operation.name": "execute_tool"},
            }.items()
        )
    ]
    (interaction,) = read(tmp_path, *spans).interactions
    assert [c.call_id for c in interaction.calls] == ["chat", "completion", "content", "unnamed"]


def test_a_span_that_wraps_a_call_is_no_call(tmp_path):
    trace = read(
        tmp_path,
        chat("framework", 0, 3, QUESTION, ANSWER),
        chat("client", 1, 2, QUESTION, ANSWER, parent_span_id="framework"),
    )
    assert [call.call_id for call in trace.interactions[0].calls] == ["client"]
    assert trace.interactions[0].calls[0].gap_s == 1.0


def test_a_failed_call_without_output_is_omitted(tmp_path):
    trace = read(
        tmp_path,
        chat("refused", 0, 1, QUESTION, status={"code": 2}),
        chat("again", 2, 3, QUESTION, ANSWER),
        chat("cut", 4, 5, QUESTION, "An arr", status={"code": 2}),
    )
    assert [call.call_id for call in trace.interactions[0].calls] == ["again", "cut"]


def test_the_nearest_span_name_is_the_agent(tmp_path):
    named = {"gen_ai.agent.name": "outer"}
    shop = {"resource_attributes": {"service.name": "shop"}}
    trace = read(
        tmp_path,
        span("o", 0, 9, attributes=named),
        span("i", 1, 5, attributes={"gen_ai.agent.name": "inner"}, parent_span_id="o"),
        span("step", 1, 3, parent_span_id="i"),
        chat("own", 0, 1, QUESTION, "1", {"gen_ai.agent.name": "own"}, parent_span_id="o"),
        chat("inner", 1, 2, QUESTION, "2", parent_span_id="step", **shop),
        chat("outer", 6, 7, QUESTION, "3", parent_span_id="o"),
        chat("shop", 8, 9, QUESTION, "4", **shop),
        chat("x", 9, 10, QUESTION, "5", name="chat gpt"),
    )
    agents = {call.call_id: call.agent for call in trace.interactions[0].calls}
    assert agents == {
        "own": "own",
        "inner": "inner",
        "outer": "outer",
        "shop": "shop",
        "x": "chat gpt",
    }


def test_a_session_is_one_run_across_traces(tmp_path):
    trace = read(
        tmp_path,
        span("root", 0, 1, trace_id="t1", attributes={"my.session.id": "s"}),
        chat("a", 0.5, 1, QUESTION, ANSWER, trace_id="t1", parent_span_id="root"),
        chat("a", 3, 4, [user(ANSWER)], "So.", {"session.id": "s"}, trace_id="t2"),
        chat("b", 5, 6, QUESTION, "x", {"gen_ai.conversation.id": "c", "session.id": "s"}),
        chat("c", 7, 8, QUESTION, "x", trace_id="t4"),
    )
    runs = {i.interaction_id: [(c.call_id, c.deps) for c in i.calls] for i in trace.interactions}
    assert runs == {
        "s": [("t1/a", ()), ("t2/a", ("t1/a",))],
        "c": [("b", ())],
        "t4": [("c", ())],
    }
    assert [i.arrival_s for i in trace.interactions] == [0.0, 5.0, 7.0]
    assert trace.interactions[0].calls[0].gap_s == 0.5


def test_users_are_read_from_the_spans(tmp_path):
    trace = read(
        tmp_path,
        span("root", 0, 9, attributes={"enduser.id": 7}),
        chat("a", 0, 1, QUESTION, ANSWER, parent_span_id="root"),
        chat("b", 1, 2, QUESTION, ANSWER, {"user.id": "ann"}, trace_id="u"),
        chat("c", 2, 3, QUESTION, ANSWER, trace_id="v"),
    )
    assert [i.user for i in trace.interactions] == ["7", "ann", "default"]


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({}, (5, 6, 14)),
        (USAGE, (94, 6, 7)),
        ({"gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 9}, (44, 6, 9)),
        ({"gen_ai.usage.input_tokens": 4}, (0, 4, 14)),  # the system tokens are part of the prompt
        ({"gen_ai.usage.output_tokens": 0}, (5, 6, 1)),
        ({"gen_ai.usage.input_tokens": None}, (5, 6, 14)),
    ],
)
def test_usage_overrides_the_text(tmp_path, usage, counts):
    call = only_call(tmp_path, QUESTION, ANSWER, usage)
    assert (call.input_tokens, call.system_tokens, call.output_tokens) == counts


def test_usage_alone_is_enough(tmp_path):
    call = only_call(tmp_path, None, None, USAGE)
    assert (call.prompt_tokens, call.output_tokens, call.blocks) == (100, 7, ())


def test_an_empty_text_is_one_token(tmp_path):
    call = only_call(tmp_path, [user("")], "")
    assert (call.prompt_tokens, call.output_tokens) == (1, 1)


def test_several_choices_share_the_generated_tokens(tmp_path):
    call = only_call(tmp_path, QUESTION, None, {**USAGE, "gen_ai.request.choice.count": 2})
    assert (call.samples, call.output_tokens) == (2, 4)


def test_messages_of_all_conventions_are_read(tmp_path):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "12345678"}]},
        {"role": "user", "parts": [{"type": "text", "content": "1234"}, "5678"]},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},  # {"name":"f"}
    ]
    output = {
        "gen_ai.system_instructions": "1234",
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": ["12345678"]}]),
    }
    call = only_call(tmp_path, messages, None, output)
    assert (call.input_tokens, call.system_tokens, call.output_tokens) == (5, 3, 2)
    parts = json.dumps([{"type": "text", "content": "12345678"}])
    call = only_call(tmp_path, [], "x", {"gen_ai.system_instructions": parts})
    assert (call.input_tokens, call.system_tokens) == (0, 2)


def blocks(tmp_path, *prompts):
    spans = [
        chat(str(second), second, second + 1, messages, "x", usage and {**USAGE, **usage})
        for second, (messages, usage) in enumerate(prompts)
    ]
    return [call.blocks for call in read(tmp_path, *spans).interactions[0].calls]


def test_prompts_share_the_blocks_of_their_common_prefix(tmp_path):
    common = "c" * 128
    assert (
        blocks(
            tmp_path,
            ([user(common + "a" * 70)], None),
            ([user(common + "b" * 70)], None),
            ([user(common), assistant("a" * 70)], None),  # another role continues
            ([user(common[:127])], None),
            ([user("d" + common), user("c" * 63)], None),
            ([system(common)], None),
        )
        == [((0, 3),), ((0, 2), (3, 1)), ((0, 2), (4, 1)), ((0, 1),), ((5, 3),), ((8, 2),)]
    )


def test_block_size_in_characters_follows_the_usage_of_the_file(tmp_path):
    # 2 characters a token over the file, so 32 a block; the second prompt has 3 full blocks.
    assert blocks(
        tmp_path,
        ([user("c" * 160)], {"gen_ai.usage.input_tokens": 68}),
        ([user("c" * 160)], {"gen_ai.usage.input_tokens": 63}),
        ([user("c" * 31 + "d")], {"gen_ai.usage.input_tokens": 45}),
    ) == [((0, 4),), ((0, 3),), ((4, 1),)]


def test_simulate_replays_spans(tmp_path, capsys):
    follow = [*QUESTION, assistant(ANSWER), user("And its cost?")]
    path = write_spans(
        tmp_path / "run.json",
        chat("a", 0, 1, QUESTION, ANSWER),
        chat("b", 21, 22, follow, "Constant."),
    )
    out = tmp_path / "out.json"
    code = cli.main(["simulate", "--trace", str(path), "--system", "fcfs", "--json", str(out)])
    assert code == 0, capsys.readouterr().err
    (result,) = json.loads(out.read_text())["systems"].values()
    assert result["completed_interactions"] == 1
    assert 20 < result["makespan_s"] < 25  # the second call waits for the first, and its gap
