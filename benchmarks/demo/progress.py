"""Progress of the demo: one line rewritten on a terminal, or a line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TextIO

from fairserve.benchmarks.demo.recorder import Recorder

LINE_INTERVAL_S = 5.0
TERMINAL_INTERVAL_S = 0.5


@dataclass(slots=True)
class DemoProgress:
    """Writes to ``stream``, which may be a terminal."""

    stream: TextIO

    def say(self, text: str) -> None:
        """Print a permanent line."""
        clear = "\r\x1b[K" if self.stream.isatty() else ""
        self.stream.write(f"{clear}{text}\n")
        self.stream.flush()

    @contextlib.asynccontextmanager
    async def watching(
        self, system: str, recorder: Recorder, seconds: float
    ) -> AsyncIterator[None]:
        """Show the recorder's counts until the block ends."""
        task = asyncio.create_task(self._watch(system, recorder, seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.say(_line(system, recorder, "done"))

    async def _watch(self, system: str, recorder: Recorder, seconds: float) -> None:
        begin_s = time.monotonic()
        terminal = self.stream.isatty()
        while True:
            await asyncio.sleep(TERMINAL_INTERVAL_S if terminal else LINE_INTERVAL_S)
            elapsed_s = time.monotonic() - begin_s
            phase = f"{elapsed_s:3.0f}/{seconds:.0f} s"
            if elapsed_s > seconds:
                phase = "draining"
            line = _line(system, recorder, phase)
            if terminal:
                self.stream.write(f"\r\x1b[K{line}")
                self.stream.flush()
            else:
                self.say(line)


def _line(system: str, recorder: Recorder, phase: str) -> str:
    return (
        f"  {system:<10} {phase:>9}: {recorder.started_runs} runs started, "
        f"{recorder.completed_runs} completed, {recorder.open_runs} open; "
        f"{len(recorder.calls)} calls ended, {recorder.open_calls} open, "
        f"{recorder.refused_calls} rejected"
    )
