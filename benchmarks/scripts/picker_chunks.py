"""Measure what a chunk of a streamed answer costs the endpoint picker.

Prints the CPU time per chunk of the whole picker (gRPC, reading and writing the event, progress to
control), from answers of two lengths, so that the cost of the request itself cancels out. The gateway
runs in a child process; the picker is this one.

    python benchmarks/scripts/picker_chunks.py [ROUNDS]
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from scripted_gateway import Gateway, PickerServer, chat, sse
from scripted_worker import ScriptedWorker

SHORT, LONG = 4, 260
CALLS = 40


def _gateway(port, key, chunks, calls):
    """Send calls, each answered in this many chunks, one message a chunk as it arrives."""
    raw = sse(*["word "] * chunks)
    parts = [part + b"\n\n" for part in raw.split(b"\n\n") if part]
    with Gateway(port) as gateway:
        for _ in range(calls):
            exchange = gateway.exchange()
            exchange.ask(chat("ok"), authorization=f"Bearer {key}")
            exchange.answer_head()
            for number, part in enumerate(parts, 1):
                exchange.answer_body(part, end=number == len(parts))
            exchange.answered()
            exchange.end()
            assert exchange.read() is None


def _cpu_s(picker, chunks):
    """Return the CPU seconds of this process per call."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(
        target=_gateway, args=(picker.picker.port, picker.app_key, chunks, CALLS)
    )
    before_s = time.process_time()
    child.start()
    child.join()
    assert child.exitcode == 0
    return (time.process_time() - before_s) / CALLS


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    worker = ScriptedWorker(kv_blocks=4096)
    with tempfile.TemporaryDirectory() as folder:
        picker = PickerServer(Path(folder) / "data", worker)
        _cpu_s(picker, SHORT)
        chunk_us = []
        for _ in range(rounds):
            short_s, long_s = _cpu_s(picker, SHORT), _cpu_s(picker, LONG)
            chunk_us.append(1e6 * (long_s - short_s) / (LONG - SHORT))
        spread = f"{min(chunk_us):.0f} to {max(chunk_us):.0f}"
        print(f"CPU per chunk: {statistics.median(chunk_us):.0f} us ({spread})")
        picker.close()
    worker.close()


if __name__ == "__main__":
    main()
