"""Leave the builds of torch out of a lock: ``uv pip compile ... | python lock.py``.

A machine's torch is a build for its processor or its GPU, from an index of its own, so its hashes are
not fixed; its version is.
"""

import sys


def without_builds_of_torch(lines):
    """Yield the lines of a lock with one line for torch, which has the version only."""
    seen = inside = False
    for line in lines:
        if not line.startswith(" "):
            inside = line.startswith("torch==")
            if inside and not seen:
                seen = True
                yield line.split(" ")[0].partition("+")[0] + "\n"
        if not inside:
            yield line


if __name__ == "__main__":
    sys.stdout.writelines(without_builds_of_torch(sys.stdin))
