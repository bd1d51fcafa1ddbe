"""Tests that run with one data plane only say why, and name the difference where it is one."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "integration" / "test_gateway"
GUIDE = ROOT / "docs" / "guide" / "data-plane.md"


def differences():
    """Return the first cells of the rows of the guide's table."""
    _, _, section = GUIDE.read_text("utf-8").partition("\n## Differences\n")
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return cells[2:]


def reasons(mark):
    """Return the arguments of each use of a mark in the suite, and where it is."""
    found = []
    for path in sorted(SUITE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        calls = {id(n.func): n.args for n in nodes if isinstance(n, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == mark:
                given = [ast.literal_eval(each) for each in calls.get(id(node), [])]
                found.append((given, f"{path.name}:{node.lineno}"))
    return found


def test_each_test_that_envoy_cannot_pass_names_a_difference_of_the_guide():
    known, marks = differences(), reasons("embedded_only")
    assert marks
    assert [where for given, where in marks if len(given) != 1 or given[0] not in known] == []


def test_each_other_test_for_one_plane_says_why():
    marks = reasons("one_plane")
    assert marks
    assert [where for given, where in marks if len(given) != 1 or not given[0].strip()] == []


def test_no_difference_is_listed_twice():
    assert len(set(differences())) == len(differences())
