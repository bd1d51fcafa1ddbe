"""Fingerprint of the second vLLM release's code: ``make test-vllm`` runs it only after a change.

    python tests/vllm/fingerprint.py take FILE RELEASE
    python tests/vllm/fingerprint.py compare FILE

``take`` writes the present fingerprint to a file, and ``compare`` compares such a file with
``tests/vllm/fingerprint.json``, the committed fingerprint of the last pass on both releases. It
prints the differences and exits with 1 if there are any.

The fingerprint is the second release and a hash of each file: the plug-in, the tests that run on
that release, ``tests/conftest.py``, every module of this repository that one of these imports
directly or indirectly, and ``constraints-vllm.txt``, which names the first release and all other
packages. Imports are read as for the fingerprints of reports
(:mod:`fairserve.benchmarks.evidence.imports`).
"""

import hashlib
import json
import sys
from pathlib import Path

from fairserve.benchmarks.evidence.imports import ImportGraph

NAME = Path(__file__).name
ROOT = Path(__file__).resolve().parents[2]
COMMITTED = "tests/vllm/fingerprint.json"
CONSTRAINTS = "constraints-vllm.txt"
ROOTS = ("engine/vllm/*.py", "tests/conftest.py", "tests/vllm/*.py")
"""Files to start from. ``tests/vllm/engine`` is not among them: it runs on the first release only."""

IMPORT_PATHS = ("src", "tests/support")
HASH_DIGITS = 16


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
