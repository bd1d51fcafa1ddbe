"""The guide to agent programs has the code of the examples, and only headers that are read."""

import re
from pathlib import Path

import pytest

from fairserve.interactions.tracking import identity

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/guide/agents.md").read_text()
EXAMPLES = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
SECTIONS = {
    "The openai package": "openai_client.py",
    "LangGraph and LangChain": "langgraph_agents.py",
    "The OpenAI Agents SDK": "openai_agents_sdk.py",
}


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_code_equals_the_example(title):
    found = blocks(section(title), "python")
    assert found
    for block in found:
        assert f"\n{block}" in EXAMPLES[SECTIONS[title]], block


def test_all_code_of_the_guide_is_checked():
    assert len(blocks(TEXT, "python")) == sum(
        len(blocks(section(title), "python")) for title in SECTIONS
    )


def test_the_examples_are_named_by_their_path():
    (command,) = (line for line in TEXT.splitlines() if line.startswith("python "))
    assert (ROOT / command.split()[1]).exists()


def test_exactly_the_supported_headers_are_described():
    described = {name.lower() for row in re.findall(r"^\|(.*)$", TEXT, re.M) for name in codes(row)}
    known = {value for name, value in vars(identity).items() if is_header(name, value)}
    known |= set(identity.ALIASES)
    assert known - described == set()
    assert {name for name in described if "-" in name} == known


def codes(row):
    return re.findall(r"`([\w-]+)`", row)


def is_header(name, value):
    return name.isupper() and isinstance(value, str) and "-" in value
