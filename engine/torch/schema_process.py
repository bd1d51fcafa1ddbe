"""Compiles schemas in a process that can be killed: the child of ``schema_checks``.

It reads lines of JSON from its standard input: a token table first, then schemas, each as a pair of
its kind and its text. It answers each with one line: the reason why it cannot be used, or an empty
string. A schema that exceeds the limit of processor time or memory is killed by the kernel, because
the library's native code cannot be interrupted. The process also ends when its input does.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import orjson

from fairserve.engine.torch.json_mode import JsonMode, TokenTable

MEMORY_BYTES = 512 * 2**20
"""Bytes that one schema may use beyond the token table."""
STACK_BYTES = 2**20
"""Bytes of stack that one schema may use: half of what the worker's threads have at least."""
_NICENESS = 5
"""Niceness of the process: running calls have priority over schemas."""


def main(cpu_s: float) -> None:
    """Answer schemas until the input ends. ``cpu_s`` is the maximum processor time of each."""
    os.nice(_NICENESS)
    lines, answers = sys.stdin.buffer, sys.stdout.buffer
    tokenizer, vocabulary, end_ids = orjson.loads(lines.readline())
    mode = JsonMode(TokenTable(tokenizer, vocabulary, tuple(end_ids)))
    _limit_memory()
    for line in lines:
        kind, schema = orjson.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            mode.compile(schema, kind)
            problem = ""
        except ValueError as error:
            problem = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(orjson.dumps(problem) + b"\n")
        answers.flush()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The worker compiles in a thread, whose stack may be smaller than that of this process.
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    with suppress(OSError):  # without /proc only processor time is limited
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(float(sys.argv[1]))
