"""Test placeholders: their values, their errors, their cost, and the absence of injection."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.interactions.programs.output import JsonMemo, Output, PathError, parse_path, sized
from fairserve.interactions.programs.program_task import Filling
from fairserve.interactions.programs.template import (
    TemplateError,
    TemplateSyntaxError,
    parse_template,
)

PLAN = json.dumps({"title": "Tea", "steps": ["boil", {"pour": [1, 2.5, None, True]}], "": 1})


def text_output(text):
    return Output((text,), sized(text)[1])


def mapped(*texts):
    return Output(texts, sum(sized(text)[1] for text in texts), mapped=True)


OUTPUTS = {
    "plan": text_output(PLAN),
    "say": text_output("  plain words "),
    "each": mapped("one", '{"n": 2}'),
    "none": mapped(),
    "gone": Output((), 0),
}


def render(text, max_bytes=10_000, outputs=OUTPUTS, index=None, item=None):
    filling = Filling(outputs.__getitem__, JsonMemo())
    filling.for_instance(index, item)
    return parse_template(text).resolve(filling.read_text, max_bytes).join()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no placeholder, { one } brace", "no placeholder, { one } brace"),
        ("<{{say.output}}>", "<  plain words >"),
        ("{{ say.output\n}}{{say.output}}", "  plain words   plain words "),
        ("{{plan.output}}", PLAN),
        ("{{plan.output.title}}", "Tea"),
        ("{{plan.output.steps}}", '["boil",{"pour":[1,2.5,null,true]}]'),
        ("{{plan.output.steps.0}}", "boil"),
        ("{{plan.output.steps.1.pour.1}}", "2.5"),
        ("{{plan.output.steps.1.pour.2}}", "null"),
        ("{{each.output}}", '["one","{\\"n\\": 2}"]'),
        ("{{each.output.0}}", "one"),
        ("{{each.output.1.n}}", "2"),
        ("{{none.output}}", "[]"),
        ("({{gone.output}}{{gone.output.any.field}})", "()"),
        ("{{{{say.output}}", "{{say.output}}"),
        ("{{{{{{say.output}}}}", "{{  plain words }}"),
        ("}} {{say.output}} }}", "}}   plain words  }}"),
        ("", ""),
    ],
)
def test_placeholders_are_replaced_by_their_values(text, expected):
    assert render(text) == expected


@pytest.mark.parametrize(
    ("item", "text", "expected"),
    [
        ("tea", "{{index}}: {{item}}", "3: tea"),
        ({"a": ["x", 2]}, "{{item}} {{item.a.0}} {{item.a.1}}", '{"a":["x",2]} x 2'),
        ('{"a": "in a text"}', "{{item.a}}", "in a text"),
        (None, "{{item}}", "null"),
        (7, "{{ item }}", "7"),
    ],
)
def test_placeholders_of_an_instance_are_replaced(item, text, expected):
    assert render(text, index=3, item=item) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{{planner}}", "{{planner}}"),
        ("{{planner.outputs}}", "{{planner.outputs}}"),
        ("{{planner.output|upper}}", "{{planner.output|upper}}"),
        ("{{planner.output[0]}}", "{{planner.output[0]}}"),
        ("{{planner .output}}", "{{planner .output}}"),
        ("{{planner.__class__}}", "{{planner.__class__}}"),
        ("{{item[0]}}", "{{item[0]}}"),
        ("{{index.a}}", "{{index.a}}"),
        ("{{index.output}}", "{{index.output}}"),
        ("{{1 + 1}}", "{{1 + 1}}"),
        ("{{}}", "{{}}"),
        ("{{{planner.output}}}", "{{{planner.output}}"),
        (f"{{{{{'a' * 65}.output}}}}", "a" * 50),
        ("{{planner.output.a b}}", "keys have no white space"),
        ("{{planner.output.}}", "single dots"),
        ("{{planner.output.a..b}}", "single dots"),
        ("{{planner.output." + ".".join("a" * 33) + "}}", "at most 32 parts"),
        ("and {{planner.output", "'{{planner.output'"),
        ("{{" + " " * 1000 + "}}", "within 640 characters"),
    ],
)
def test_invalid_placeholders_are_rejected_by_name(text, named):
    with pytest.raises(TemplateSyntaxError) as raised:
        parse_template(text)
    assert named in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{plan.output.nope}}", "{{plan.output.nope}}: the output of 'plan' has no field nope"),
        (
            "{{plan.output.steps.2}}",
            "{{plan.output.steps.2}}: the output of 'plan' has no field steps.2: "
            "the list has 2 items",
        ),
        (
            "{{plan.output.steps.first}}",
            "{{plan.output.steps.first}}: the output of 'plan' has no field steps.first: "
            "a list is read by position",
        ),
        (
            "{{plan.output.title.a}}",
            "{{plan.output.title.a}}: the output of 'plan' has no field title.a: it is in a text",
        ),
        ("{{say.output.a}}", "{{say.output.a}}: the output of 'say' is not JSON"),
        (
            "{{each.output.2}}",
            "{{each.output.2}}: the output of 'each' has no field 2: the list has 2 items",
        ),
        ("{{each.output.0.a}}", "{{each.output.0.a}}: the output of 'each' is not JSON"),
        ("{{item.a}}", "{{item.a}}: the item has no field a: it is in a number"),
    ],
)
def test_a_missing_field_is_named(text, message):
    with pytest.raises(TemplateError) as raised:
        render(text, index=0, item=5)
    assert str(raised.value) == message


@pytest.mark.parametrize("bad", ["[" * 100_000, "NaN", '{"a": Infinity}', "1e999", "9" * 5_000, ""])
def test_invalid_json_is_not_accepted(bad):
    with pytest.raises(TemplateError, match="is not JSON"):
        render("{{bad.output.a}}", outputs={"bad": text_output(bad)})


def test_inserted_texts_are_not_expanded_again():
    outputs = {"evil": text_output("{{secret.output}} {{{{"), "secret": text_output("secret")}
    assert render("{{evil.output}}", outputs=outputs) == "{{secret.output}} {{{{"
    assert render("{{item}}", outputs=outputs, index=0, item="{{secret.output}}") == (
        "{{secret.output}}"
    )


def test_the_size_is_bounded_in_bytes():
    outputs = {"a": text_output("äöü")}
    assert render("x{{a.output}}x", max_bytes=8, outputs=outputs) == "xäöüx"
    with pytest.raises(TemplateError, match="has 6 bytes; 5 of the bytes"):
        render("x{{a.output}}x", max_bytes=7, outputs=outputs)
    with pytest.raises(TemplateError, match="n}} has 1 bytes; 0 of the bytes"):
        render("{{each.output.1.n}}{{plan.output.title}}{{each.output.1.n}}", max_bytes=4)
    # Quotes and escapes of a list are added to its texts.
    quotes = {"q": mapped('"' * 10)}
    assert render("{{q.output}}", max_bytes=24, outputs=quotes) == json.dumps(['"' * 10])
    with pytest.raises(TemplateError, match="has 24 bytes; 23 of the bytes"):
        render("{{q.output}}", max_bytes=23, outputs=quotes)


def test_a_text_too_large_is_rejected_before_it_is_built():
    # The text would fit, but its declared size does not.
    huge = Output(("x",) * 300, 10**9, mapped=True)
    with pytest.raises(TemplateError, match="has 1000000000 bytes"):
        render("{{huge.output}}", outputs={"huge": huge})


def test_a_lone_surrogate_from_json_can_be_sent():
    outputs = {"a": text_output(r'{"half": "\ud83d!", "whole": "\ud83d\ude00"}')}
    assert render("{{a.output.half}}{{a.output.whole}}", outputs=outputs) == "\ufffd!\U0001f600"


def test_the_memo_is_bounded_and_parses_once(monkeypatch):
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **kw: parsed.append(text) or loads(text, **kw))
    memo = JsonMemo(max_chars=10)
    for text in ("[1,2]", "[1,2]", "[3,4]", "[1,2]", "[5]", "[1,2]", "[" + "1," * 50 + "1]", "[5]"):
        memo.parse(text)
    # "[5]" evicts the oldest, the long one all others.
    assert parsed == ["[1,2]", "[3,4]", "[5]", "[1,2]", "[" + "1," * 50 + "1]", "[5]"]


def test_paths_are_parsed():
    assert parse_path("a.0.b-c") == ("a", "0", "b-c")
    for bad in ("", ".", "a.", "a..b", "a" * 513):
        with pytest.raises(PathError):
            parse_path(bad)


@given(st.text(), st.lists(st.sampled_from(["{{", "}}", "{{a.output}}", "{", "x", "ä"])))
@example("{{a.output}}", ["{", "{{a.output}}"])
def test_any_text_parses_or_is_rejected_and_escapes_restore_it(text, parts):
    for source in (text, "".join(parts)):
        try:
            template = parse_template(source)
        except TemplateSyntaxError:
            assert "{{" in source
        else:
            literals = [part for part in template.parts if isinstance(part, str)]
            assert template.literal_bytes == sum(sized(part)[1] for part in literals)
        escaped = parse_template(source.replace("{{", "{{{{"))
        assert "".join(map(str, escaped.parts)) == source
