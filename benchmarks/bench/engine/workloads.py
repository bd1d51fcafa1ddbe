"""Requests with which engines are measured: sizes are fixed by name, tokens drawn for every round.

All requests of a workload are submitted at once. Tokens are random and new in each round, so that
no cache holds a prompt before its round begins; within ``shared`` all prompts begin with the same
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairserve.engine.torch.bench.runner import RunnerLimits, RunnerRequest


@dataclass(frozen=True, slots=True)
class EngineWorkload:
    """Prompts and outputs of one length, or spread over a range."""

    name: str
    requests: int
    prompt_tokens: tuple[int, int]
    """Minimum and maximum own prompt tokens, evenly spread by ratio."""
    output_tokens: tuple[int, int]
    """Minimum and maximum output tokens, evenly spread."""
    shared_tokens: int = 0
    """Number of tokens with which every prompt begins."""

    def sizes(self) -> list[tuple[int, int]]:
        """Return own prompt tokens and output tokens of each request, the same in every round."""
        prompts = np.geomspace(*self.prompt_tokens, self.requests).round().astype(int).tolist()
        outputs = np.linspace(*self.output_tokens, self.requests).round().astype(int).tolist()
        random = np.random.default_rng(7)
        return list(zip(prompts, random.permutation(outputs).tolist(), strict=True))

    def make(self, vocabulary: int, seed: int) -> list[RunnerRequest]:
        """Return one round's requests, in a shuffled order determined by the seed."""
        random = np.random.default_rng([seed, self.requests])

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(random.integers(0, vocabulary, count).tolist())

        shared = tokens(self.shared_tokens)
        made = [RunnerRequest(shared + tokens(prompt), output) for prompt, output in self.sizes()]
        return [made[at] for at in random.permutation(len(made))]

    def shortened(self, output_tokens: int) -> EngineWorkload:
        """Return the same prompts with short outputs, to warm up."""
        least, most = self.output_tokens
        return replace(self, output_tokens=(min(least, output_tokens), min(most, output_tokens)))

    def scaled(self, scale: float) -> EngineWorkload:
        """Return fewer and shorter requests, for tests."""
        if scale == 1:
            return self

        def less(tokens: tuple[int, int]) -> tuple[int, int]:
            return max(2, round(tokens[0] * scale)), max(2, round(tokens[1] * scale))

        return replace(
            self,
            requests=max(1, round(self.requests * scale)),
            prompt_tokens=less(self.prompt_tokens),
            output_tokens=less(self.output_tokens),
            shared_tokens=round(self.shared_tokens * scale),
        )


def workloads(on_gpu: bool, scale: float = 1.0) -> Mapping[str, EngineWorkload]:
    """Return workloads by name; a GPU's are longer, as short ones would measure kernel launches."""
    prompt, output = (512, 64) if on_gpu else (64, 32)
    one, eight, many, most = (
        EngineWorkload(f"b{batch}", batch, (prompt, prompt), (output, output))
        for batch in (1, 8, 32, 128)
    )
    shared = EngineWorkload("shared", 32, (32, 32), (16, 16), shared_tokens=2048 if on_gpu else 512)
    mixed = EngineWorkload("mixed", 32, (prompt // 4, prompt * 4), (output // 4, output * 2))
    return {each.name: each.scaled(scale) for each in (one, eight, many, shared, most, mixed)}


NAMES: Sequence[str] = tuple(workloads(False))


def limits(on_gpu: bool, scale: float = 1.0) -> RunnerLimits:
    """Return the limits of every engine: enough that no workload waits for memory."""
    kv_tokens, token_budget = (98_304, 8192) if on_gpu else (32_768, 512)
    return RunnerLimits(
        kv_tokens=max(2048, round(kv_tokens * scale)),
        max_batch=max(4, round(128 * scale)),
        token_budget=max(32, round(token_budget * scale)),
    )


def guard() -> EngineWorkload:
    """Return requests of several lengths with a common prefix, for the comparison of tokens."""
    return EngineWorkload("guard", 6, (5, 90), (8, 16), shared_tokens=40)
