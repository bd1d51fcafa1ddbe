"""Fingerprint of the second vLLM release's code: ``make test-vllm`` runs it only after a change.

    python tests/vllm/fingerprint.py take FILE RELEASE
    python tests/vllm/fingerprint.py compare FILE

``take`` writes the present fingerprint to a file, and ``compare`` compares such a file with
``tests/vllm/fingerprint.json``, the committed fingerprint of the last pass on both releases. It
prints the differences and exits with 1 if there are any.

The fingerprint is the second release and a hash of each file: the plug-in, the tests that run on
that release, ``tests/conftest.py``, every module of this repository that one of these imports
directly or indirectly, and ``constraints-vllm.txt``, which names the first release and all other
packages. Imports are read from the syntax trees, including those inside functions. Weakness: a module
imported by a computed name is not found.
"""

import ast
import hashlib
import json
import sys
from pathlib import Path

NAME = Path(__file__).name
ROOT = Path(__file__).resolve().parents[2]
COMMITTED = "tests/vllm/fingerprint.json"
CONSTRAINTS = "constraints-vllm.txt"
ROOTS = ("engine/vllm/*.py", "tests/conftest.py", "tests/vllm/*.py")
"""Files to start from. ``tests/vllm/engine`` is not among them: it runs on the first release only."""

IMPORT_PATHS = ("src", "tests/support")
HASH_DIGITS = 16


def imported_names(tree):
    """Return the dotted names that a module's import statements may load as modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


class ImportGraph:
    """Imports of the files below some folders. Each file is read once."""

    def __init__(self, folders):
        """``folders`` are those of Python's search path."""
        self._folders = folders
        self._imports = {}
        self._files = {}

    def closure(self, start):
        """Return these files and all their imports, resolved, each once."""
        found = dict.fromkeys(file.resolve() for file in start)
        for file in (waiting := list(found)):  # grows during the walk
            for each in self._imported(file):
                if each not in found:
                    found[each] = None
                    waiting.append(each)
        return waiting

    def _imported(self, file):
        if file not in self._imports:
            names = sorted(imported_names(ast.parse(file.read_bytes())))
            self._imports[file] = tuple(each for name in names for each in self.module_files(name))
        return self._imports[file]

    def module_files(self, name):
        """Return the files that the import of a dotted name runs: its packages and the module."""
        if name not in self._files:
            parts = name.split(".")
            places = [
                folder.joinpath(*parts[:n])
                for folder in self._folders
                for n in range(1, len(parts) + 1)
            ]
            files = [file for at in places for file in (at / "__init__.py", at.with_suffix(".py"))]
            # Resolved, because src/fairserve holds links to the packages.
            self._files[name] = tuple(file.resolve() for file in files if file.is_file())
        return self._files[name]


def closure(root):
    """Return the files to start from and all that they import, as sorted paths in the repository."""
    # This script decides whether tests run; it is not part of the code under test.
    start = [each for pattern in ROOTS for each in root.glob(pattern) if each.name != NAME]
    files = ImportGraph([root / path for path in IMPORT_PATHS]).closure(sorted(start))
    return sorted(file.relative_to(root).as_posix() for file in files)


def fingerprint(root, release):
    """Return the second release, and the hash of each file by its path in the repository."""
    root = root.resolve()
    return {
        "release": release,
        "files": {
            path: hashlib.sha256((root / path).read_bytes()).hexdigest()[:HASH_DIGITS]
            for path in [CONSTRAINTS, *closure(root)]
        },
    }


def differences(now, before):
    """Return a line for each difference between two fingerprints; ``before`` may be None."""
    if before is None:
        return [f"{COMMITTED} is missing"]
    lines = []
    if now["release"] != before["release"]:
        lines.append(f"release: {before['release']} before, {now['release']} now")
    new, old = now["files"], before["files"]
    lines += [f"new: {path}" for path in sorted(set(new) - set(old))]
    lines += [f"gone: {path}" for path in sorted(set(old) - set(new))]
    lines += [f"changed: {path}" for path in sorted(set(new) & set(old)) if new[path] != old[path]]
    return lines


def main(command, file, release=None):
    """Run one command; return the exit status."""
    path, committed = Path(file), ROOT / COMMITTED
    if command == "take":
        path.write_text(json.dumps(fingerprint(ROOT, release), indent=1) + "\n")
        return 0
    if command != "compare":
        raise SystemExit(f"unknown command {command!r}; must be take or compare")
    now = json.loads(path.read_text())
    before = json.loads(committed.read_text()) if committed.exists() else None
    lines = differences(now, before)
    vllm = f"vLLM {now['release']}"
    if not lines:
        print(f"{vllm} is not run: all {len(now['files'])} files are those of its last pass.")
        return 0
    print(f"{vllm} is run, because this differs from its last pass ({COMMITTED}):")
    print(*lines, sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
