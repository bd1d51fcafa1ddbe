"""Check that the tree is written in plain standard English: ``python tests/plain_english.py``.

The check finds words that the field has other words for, and docstrings whose first line is no
sentence. It checks words only: the meaning of a text must be judged by a reader. Prints ``file:line:
what`` and exits with 1 if it finds something.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = (
    "platform",
    "interactions",
    "throttling",
    "scheduling",
    "engine",
    "benchmarks",
    "migrations",
    "src/fairserve",
    "src/fairserve_client",
    "tests",
)
WORDS = re.compile(
    r"\b(told|tells?|foretold|ajar|blamed|no_room|turned_away|may_look|patiently|cached_told"
    r"|gives? back|takes? back|puts? back|under way)\b"
)
FRAGMENT = re.compile(r"(Of|Whom|What|Whose|Who|How|Whether|Where|That|To whom) ")
PUBLIC_NAMES: frozenset[str] = frozenset()
"""Texts of public columns, fields and options; lines that contain one are skipped."""


def replaced_words(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the line number and each word that the field has another word for."""
    for number, line in enumerate(lines, 1):
        if any(name in line for name in PUBLIC_NAMES):
            continue
        for found in WORDS.findall(line):
            yield number, f"the word {found!r}"


def fragments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line number and the beginning of each docstring that begins like a fragment.

    A string statement after a field or a constant counts as its docstring.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        text = node.value.value
        if isinstance(text, str) and FRAGMENT.match(text):
            yield node.lineno, f"a docstring that is no sentence: {text[:40]!r}"


def main() -> int:
    """Print what was found in all trees; return 1 if there is something."""
    found = 0
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            if path.is_symlink() or path == Path(__file__).resolve():
                continue
            text = path.read_text("utf-8")
            for number, what in (
                *replaced_words(text.splitlines()),
                *fragments(ast.parse(text)),
            ):
                print(f"{path.relative_to(ROOT)}:{number}: {what}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
