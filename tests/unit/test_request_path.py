"""The page about the path of a call shows the states that the code has."""

from pathlib import Path

from call_states import diagram

PAGE = Path(__file__).resolve().parents[2] / "docs" / "request-path.md"


def test_the_diagram_is_that_of_the_table():
    text = f"```mermaid\n{diagram()}\n```"
    assert text in PAGE.read_text(encoding="utf-8"), "python tests/support/call_states.py"
