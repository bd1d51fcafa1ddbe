"""Mutations are generated at the places that matter, and can be taken out of the tree."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mutations"))

import operators
import run

SOURCE = '''
"""Text."""
LIMIT: int = 3


def f(a, b, *, strict=True):
    """Text."""
    assert a >= 0
    if a < b and not strict:
        raise ValueError(f"{a + b}, allowed: 7")
    for each in b:
        a.seen += 1
        a.last = min(each, b)
        c = each
        if c:
            return None
    return c
'''
EXPECTED = """
module: 3 -> 4
f: True -> False
f: a < b and (not strict) -> a < b or not strict
f: a < b and (not strict) -> not (a < b and (not strict))
f: a < b -> a <= b
f: a < b -> a >= b
f: not strict -> strict
f: raise ValueError(f'{a + b}, allowed: 7') -> pass
f: a.seen += 1 -> a.seen -= 1
f: a.seen += 1 -> pass
f: 1 -> 2
f: a.last = min(each, b) -> pass
f: min -> max
f: c -> not c
f: return c -> return None
"""


def test_each_place_is_mutated_once_in_each_way():
    tree = ast.parse(SOURCE)
    found = operators.mutations(tree)
    assert sorted(each.name for each in found) == sorted(EXPECTED.strip().splitlines())
    before = ast.unparse(tree)
    texts = set()
    for each in found:
        old = each.put(each.new)
        texts.add(ast.unparse(tree))
        compile(tree, "source", "exec")
        each.put(old)
        assert ast.unparse(tree) == before
    assert len(texts - {before}) == len(found)


def test_equal_places_have_different_names():
    found = operators.mutations(ast.parse("def f(a):\n    return a + 1 + 1"))
    assert [each.name for each in found if "-> 2" in each.name] == ["f: 1 -> 2", "f: 1 -> 2 (2)"]


def test_each_module_of_the_core_has_tests(monkeypatch):
    found = dict(run.modules(("",)))
    assert all(tests for tests in found.values())
    assert "scheduling/dispatch/dispatcher.py" in found
    assert list(dict(run.modules(("throttling/overload/oit",)))) == ["throttling/overload/oit.py"]
    monkeypatch.setattr(run, "TESTS", {"throttling/overload": ["no_such_file.py"]})
    with pytest.raises(SystemExit, match="no_such_file"):
        list(run.modules(("",)))
