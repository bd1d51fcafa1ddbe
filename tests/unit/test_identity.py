"""Headers and metadata determine the run of a call: precedence, aliases, limits, separate apps."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.interactions.run_rules import (
    DEFAULT_RUN_RULES,
    RUN_RULES,
    known_rules,
    normal_rules,
)
from fairserve.interactions.tracking.identity import (
    ALIASES,
    CallIdentity,
    IdentityError,
    OtherSources,
    client_run_id,
    core_call_id,
    core_run_id,
    identify,
)


def test_a_call_without_headers_is_its_own_run():
    for found in (identify({}), identify({"user-agent": "x"}, {"topic": "y"})):
        assert found.run_id is None
        assert [clue.rule for clue in found.clues] == ["continued_conversation"]
    assert identify({}, rules=()) == CallIdentity(None)


def test_own_headers_name_run_and_call():
    found = identify(
        {
            "x-interaction-id": " run 7 ",
            "x-interaction-final": "true",
            "x-call-id": "c3",
            "x-parent-ids": "c1, c2,c1",
            "x-agent": "writer",
        }
    )
    expected = CallIdentity("run 7", "x-interaction-id", "c3", ("c1", "c2"), "writer", True)
    assert replace(found, rule=None, answer_scopes=()) == expected
    assert found.rule == "interaction_header"


def test_an_empty_parents_header_makes_the_call_a_root():
    assert identify({"x-parent-ids": ""}).parents == ()
    assert identify({}).parents is None


@pytest.mark.parametrize("position", range(len(ALIASES)))
def test_the_first_alias_takes_precedence(position):
    headers = {alias: alias.upper() for alias in ALIASES[position:]}
    found = identify(headers)
    assert (found.run_id, found.source) == (ALIASES[position].upper(), ALIASES[position])


def test_precedence_is_own_header_metadata_aliases():
    everything = {"x-interaction-id": "own", "session-id": "alias"}
    metadata = {"interaction_id": "meta"}
    assert identify(everything, metadata).run_id == "own"
    assert identify({"session-id": "alias"}, metadata).run_id == "meta"
    assert identify({"session-id": "alias"}, {}).run_id == "alias"


def test_metadata_is_equivalent_to_the_headers():
    metadata = {
        "interaction_id": "r",
        "interaction_final": True,
        "call_id": "c",
        "parent_ids": ["a", "b"],
        "agent": "x",
    }
    found = identify({}, metadata)
    assert (found.run_id, found.source) == ("r", "metadata.interaction_id")
    assert (found.call_id, found.parents, found.agent) == ("c", ("a", "b"), "x")
    assert (found.final, found.rule) == (True, "interaction_metadata")


@pytest.mark.parametrize("final", [{}, {"x-dynamo-session-final": "true"}])
def test_a_dynamo_sub_agent_joins_the_run_of_its_parent(final):
    session = {"x-dynamo-session-id": "child", **final}
    found = identify({**session, "x-dynamo-parent-session-id": "root"})
    assert (found.run_id, found.agent, found.final) == ("root", "child", False)
    found = identify(session)
    assert (found.run_id, found.final) == ("child", bool(final))


def test_claude_code_headers_name_the_agent():
    found = identify({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"})
    assert (found.run_id, found.agent) == ("s", "a")


@pytest.mark.parametrize(
    ("headers", "metadata", "source"),
    [
        ({"x-interaction-id": ""}, None, "x-interaction-id"),
        ({"x-interaction-id": "a" * 129}, None, "x-interaction-id"),
        ({"session-id": "a\x00b"}, None, "session-id"),
        ({"x-call-id": "a,b"}, None, "x-call-id"),
        ({"x-parent-ids": "a,,b"}, None, "x-parent-ids"),
        ({"x-parent-ids": ",".join(map(str, range(65)))}, None, "x-parent-ids"),
        ({"x-interaction-final": "maybe"}, None, "x-interaction-final"),
        ({}, {"interaction_id": 7}, "metadata.interaction_id"),
        ({}, {"parent_ids": [1]}, "metadata.parent_ids"),
        ({}, {"interaction_final": 1.5}, "metadata.interaction_final"),
    ],
)
def test_errors_name_the_header_or_field(headers, metadata, source):
    with pytest.raises(IdentityError) as raised:
        identify(headers, metadata)
    assert raised.value.source == source
    assert str(raised.value).startswith(source)


APP_IDS = st.from_regex(r"app_[0-9a-f]{4}", fullmatch=True)
CLIENT_IDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1)


@example("app_0", "app_0", "a/b", "a", "c", "b/c")
@example("app_0", "app_0", "a", "a", "b/c", "b%2Fc")
@given(APP_IDS, APP_IDS, CLIENT_IDS, CLIENT_IDS, CLIENT_IDS, CLIENT_IDS)
def test_different_calls_have_different_ids(app, other_app, run, other_run, call, other_call):
    first = core_call_id(core_run_id(app, run), call)
    second = core_call_id(core_run_id(other_app, other_run), other_call)
    assert (first == second) == ((app, run, call) == (other_app, other_run, other_call))
    assert client_run_id(app, core_run_id(app, run)) == run


TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
HEADERS = {"x-interaction-id": "own", "session-id": "alias", **TRACE}
METADATA = {"interaction_id": "meta", "session_id": "s", "run_id": "r", "thread_id": "t"}
OTHER = OtherSources("conv", "app/earlier", "key")
CLIENT_RULES = RUN_RULES[:3]


@given(st.sets(st.sampled_from(RUN_RULES)))
def test_the_rules_that_are_on_decide_in_their_order(rules):
    """A call has everything: the first rule of those that are on decides, and none that is off."""
    found = identify(HEADERS, METADATA, rules, OTHER)
    own = [rule for rule in CLIENT_RULES if rule in rules]
    ids = dict(zip(CLIENT_RULES, ("own", "meta", "alias"), strict=True))
    assert found.run_id == (ids[own[0]] if own else None)
    assert found.rule == (own[0] if own else None)
    expected = [] if own else [rule for rule in RUN_RULES[3:] if rule in rules]
    assert [clue.rule for clue in found.clues] == expected
    assert len(found.answer_scopes) == len(rules & {"traceparent", "continued_conversation"})


def test_a_trace_and_a_cache_key_name_no_run_by_default():
    assert set(RUN_RULES) - set(DEFAULT_RUN_RULES) == {"whole_trace", "prompt_cache_key"}
    clues = identify(TRACE, other=OTHER).clues
    assert [clue.rule for clue in clues if clue.name] == ["conversation"]
    assert identify(TRACE, other=OtherSources(own_trace=False)) == identify({})


@pytest.mark.parametrize("value", [7, None, "", "  ", "a\nb", "x" * 513, ["s"]])
def test_malformed_ids_of_other_tools_are_ignored(value):
    assert identify({}, {"session_id": value}) == identify({})
    assert identify({}, {"session_id": value, "thread_id": "t"}).clues[0].rule == "metadata"
    off = identify({}, None, RUN_RULES, OtherSources(prompt_cache_key=value))
    assert off == identify({}, None, RUN_RULES)


@pytest.mark.parametrize("value", ["", "00-0-0-01", TRACE["traceparent"].replace("4bf", "4BF")])
def test_a_malformed_trace_is_ignored(value):
    assert identify({"traceparent": value}) == identify({})


def test_equal_ids_of_different_rules_are_different_names():
    names = {
        clue.name for clue in identify({}, {"run_id": "x"}, RUN_RULES, OtherSources("x")).clues
    }
    names |= {identify({}, None, RUN_RULES, OtherSources(prompt_cache_key="x")).clues[-1].name}
    assert len(names - {0}) == 3


def test_rules_are_ordered_and_checked():
    assert normal_rules([" metadata", "aliases", "aliases"]) == ("aliases", "metadata")
    with pytest.raises(ValueError, match="'x' is not a rule; allowed: interaction_header"):
        normal_rules(["x"])
    assert known_rules(["later", "aliases"]) == ("aliases",)
