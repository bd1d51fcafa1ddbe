"""Runs engines in turn on the same requests: first compares their tokens, then their speed.

An engine that cannot run is excluded with a reason, and the others continue. Rounds interleave (A,
B, C, then B, C, A), so that a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairserve.benchmarks.bench.engine.workloads import EngineWorkload
from fairserve.engine.torch.bench.runner import (
    Runner,
    RunnerOutcome,
    RunnerRequest,
    RunnerUnavailableError,
)

Say = Callable[[str], None]


class DisagreementError(Exception):
    """Engines generated different tokens from the same prompts with the same weights."""


@dataclass(frozen=True, slots=True)
class ContestRun:
    """One workload of one round on one engine."""

    tokens_per_s: float
    first_token_s: tuple[float, ...]
    alike: float
    """Share of the requests with the same tokens as the first engine."""


@dataclass(slots=True)
class Contest:
    """The participating engines, and the measurements so far."""

    runners: dict[str, Runner]
    """Engines by name; the first one is ours."""
    vocabulary: int
    say: Say = lambda text: None
    unavailable: dict[str, str] = field(default_factory=dict)
    """Reason why an engine did not participate, by its name."""
    runs: dict[str, dict[str, list[ContestRun]]] = field(default_factory=dict)
    """Runs by workload and engine, one per round."""

    def check(self, workload: EngineWorkload) -> None:
        """Check that all engines give the same tokens. Raises DisagreementError otherwise."""
        requests = workload.make(self.vocabulary, seed=0)
        outputs = {
            name: outcome.outputs for name, outcome in self._turn(requests, list(self.runners))
        }
        ours, expected = next(iter(outputs.items()))
        for name, output in outputs.items():
            if output != expected:
                different = sum(a != b for a, b in zip(output, expected, strict=True))
                raise DisagreementError(
                    f"{name} gives other tokens than {ours} in {different} of {len(requests)} "
                    "requests"
                )

    def warm_up(self, workload: EngineWorkload) -> None:
        """Run one round with short outputs that does not count."""
        requests = workload.shortened(4).make(self.vocabulary, seed=0)
        for _ in self._turn(requests, list(self.runners)):
            pass

    def round(self, number: int, workload: EngineWorkload) -> None:
        """Run one workload once on every engine; ``number`` seeds the tokens and rotates the order."""
        requests = workload.make(self.vocabulary, seed=number + 1)
        names = list(self.runners)
        turn = number % len(names)
        gc.collect()
        outcomes = dict(self._turn(requests, names[turn:] + names[:turn]))
        expected = outcomes[names[0]].outputs
        of_workload = self.runs.setdefault(workload.name, {})
        for name, outcome in outcomes.items():
            alike = sum(a == b for a, b in zip(outcome.outputs, expected, strict=True))
            run = ContestRun(
                outcome.tokens_per_s(requests), outcome.first_token_s, alike / len(requests)
            )
            of_workload.setdefault(name, []).append(run)

    def close(self) -> None:
        """Release all memory."""
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()

    def _turn(
        self, requests: Sequence[RunnerRequest], names: Sequence[str]
    ) -> list[tuple[str, RunnerOutcome]]:
        outcomes = []
        for name in names:
            try:
                outcome = self.runners[name].run(requests)
            except RunnerUnavailableError as error:
                self._drop(name, str(error))
                continue
            counts = [len(output) for output in outcome.outputs]
            if counts != [request.output_tokens for request in requests]:
                self._drop(name, f"gave {sum(counts)} tokens, not those that were asked for")
                continue
            outcomes.append((name, outcome))
        return outcomes

    def _drop(self, name: str, reason: str) -> None:
        self.say(f"{name} takes no part: {reason}")
        self.unavailable[name] = reason
        runner = self.runners.pop(name)
        for of_workload in self.runs.values():
            of_workload.pop(name, None)
        runner.close()


def enter(
    makers: Mapping[str, Callable[[], Runner]], vocabulary: int, say: Say = lambda text: None
) -> Contest:
    """Build the engines; one that cannot be built is recorded as unavailable."""
    contest = Contest({}, vocabulary, say)
    for name, make in makers.items():
        try:
            contest.runners[name] = make()
        except RunnerUnavailableError as error:
            say(f"{name} takes no part: {error}")
            contest.unavailable[name] = str(error)
    return contest
