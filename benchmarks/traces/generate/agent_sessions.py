"""Sessions of coding agents: chains of calls whose context grows with each turn.

Each call's prompt is the context so far, the next one a tool's time after its end. A session's context
begins at ``begin`` tokens, grows by ``growth`` a turn, and is shared with no other session. Recorded
sessions of coding agents are longer (45 turns, 42k tokens in the median) with shorter tools.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall

_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class AgentSessions:
    """Ranges are least and greatest, drawn evenly."""

    turns: int = 15
    begin: tuple[int, int] = (8_000, 16_000)
    growth: tuple[int, int] = (1_000, 4_000)
    output: tuple[int, int] = (100, 400)
    system_tokens: int = 4_000
    tool_s: float = 8.0
    """Mean time of a tool, exponentially distributed."""
    within_s: float = 30.0
    """Time in which all sessions begin."""
    tenants: int = 4
    users: int = 16
    """Users of all tenants together."""

    @property
    def mean_tokens(self) -> float:
        """Return the mean context of a session over its turns."""
        return sum(self.begin) / 2 + sum(self.growth) / 2 * (self.turns - 1) / 2

    def trace(self, sessions: int, seed: int) -> Trace:
        """Return the trace of so many sessions."""
        rng = np.random.default_rng(seed)
        longest = self.begin[1] + self.turns * self.growth[1]
        runs = [
            Interaction(
                f"session-{number}",
                f"tenant-{number % self.tenants}",
                "agent",
                f"user-{number % self.users}",
                float(rng.uniform(0.0, self.within_s)),
                self._calls(1 + number * (longest // _BLOCK_TOKENS), rng),
            )
            for number in range(sessions)
        ]
        runs.sort(key=lambda run: run.arrival_s)
        return Trace(f"{sessions} agent sessions", _BLOCK_TOKENS, tuple(runs))

    def _calls(self, first_block: int, rng: np.random.Generator) -> tuple[TraceCall, ...]:
        calls: list[TraceCall] = []
        context = int(rng.integers(*self.begin, endpoint=True))
        for turn in range(self.turns):
            calls.append(
                TraceCall(
                    f"c{turn}",
                    "main",
                    (calls[-1].call_id,) if calls else (),
                    float(rng.exponential(self.tool_s)) if calls else 0.0,
                    context - self.system_tokens,
                    self.system_tokens,
                    int(rng.integers(*self.output, endpoint=True)),
                    blocks=((first_block, context // _BLOCK_TOKENS),),
                )
            )
            context += int(rng.integers(*self.growth, endpoint=True))
        return tuple(calls)
