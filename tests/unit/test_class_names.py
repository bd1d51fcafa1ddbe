"""A class name stands for one thing in the whole tree; names with an underscore are a module's own."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("interactions", "throttling", "scheduling", "engine", "platform", "benchmarks")


def test_a_class_name_stands_for_one_thing():
    found = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 1000
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
