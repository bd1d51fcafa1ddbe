"""A mutation is one small bug, with the tests that should detect it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AREAS = (
    "scheduling",
    "throttling",
    "tracker",
    "ledger",
    "usage",
    "webhooks",
    "exports",
    "console",
    "engine",
    "vllm",
    "evidence",
)
VLLM_TESTS = "tests/vllm"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A plausible bug: ``old`` becomes ``new`` in ``file``.

    The paths are relative to the root of the tree.
    """

    name: str
    """Fragment of a sentence that states the bug."""
    area: str
    file: str
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Files, folders and glob patterns of tests, the most likely first. Some may be missing."""

    @property
    def needs_vllm(self) -> bool:
        """Return whether its tests run in the environment that has vLLM."""
        return all(test.startswith(VLLM_TESTS) for test in self.tests)

    def apply(self, text: str) -> str:
        """Return the text of the file with the bug in it.

        Raises ValueError unless ``old`` occurs exactly once, and SyntaxError if the result does not
        compile.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"its old text occurs {found} times in {self.file}; must be once")
        mutated = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(mutated, self.file, "exec")
        return mutated

    def targets(self, tree: Path) -> tuple[list[str], list[str]]:
        """Return the targets that exist in the tree, and the patterns that match nothing there."""
        existing: dict[str, None] = {}
        missing: list[str] = []
        for pattern in self.tests:
            found = sorted(path.relative_to(tree).as_posix() for path in tree.glob(pattern))
            existing.update(dict.fromkeys(found))
            if not found:
                missing.append(pattern)
        return list(existing), missing
