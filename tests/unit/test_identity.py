"""Headers and metadata determine the run of a call: precedence, aliases, limits, separate apps."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.interactions.tracking.identity import (
    ALIASES,
    CallIdentity,
    IdentityError,
    client_run_id,
    core_call_id,
    core_run_id,
    identify,
)


def test_a_call_without_headers_is_its_own_run():
    assert identify({}) == CallIdentity(None)
    assert identify({"user-agent": "x"}, {"topic": "y"}) == CallIdentity(None)


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
    assert found == expected


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
    assert identify({}, metadata) == CallIdentity(
        "r", "metadata.interaction_id", "c", ("a", "b"), "x", True
    )


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
