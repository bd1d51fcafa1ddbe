"""Agent applications: number, lengths and dependencies of the calls of an interaction.

The numbers of Table 2 of the FairServe paper (share of interactions by number of calls, and the
tokens summed over their calls) hold for all apps together; an app scales the tokens by the ratio of
its calls to the mean call. An interaction is a chain (each call continues in the same context) or a
fan-out (a planner, parallel workers, a join; several rounds if there are many calls).

Chosen, since the paper gives no number: the distribution of calls within a class (binomial); the
mean number of calls in the class of 2-10, 4.27, with which its calls read as much as a single call;
at most 100 calls; the last three classes at 0.01 % each ("less than 0.01 %" in the paper); the
system prompt at 40 % of an app's mean prompt; fan-outs in half of the interactions, at most eight
wide; half a second of tool time before a call that waited for others; the spread of lengths.

Weakness: every app has the same mix of graphs (the paper's Figure 4a shows that they differ, without
numbers); the prompt of a call does not depend on the output lengths of the calls before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairserve.benchmarks.traces.generate.block_ids import BlockIds, IdPrefix
from fairserve.benchmarks.traces.generate.programs import (
    Calls,
    call_on,
)
from fairserve.benchmarks.traces.generate.token_lengths import TokenLengths
from fairserve.engine.simulated.traces.model import TraceCall


@dataclass(frozen=True, slots=True)
class GraphClass:
    """A class of interactions by number of calls."""

    share: float
    """Share of all interactions; shares need not add up to 1."""
    least_calls: int
    most_calls: int
    input_tokens: float
    """Mean prompt tokens of all calls of an interaction together, system tokens included."""
    output_tokens: float
    mean_calls: float

    def draw_calls(self, rng: np.random.Generator) -> int:
        """Return a number of calls. Advances ``rng``."""
        span = self.most_calls - self.least_calls
        if span == 0:
            return self.least_calls
        return self.least_calls + int(
            rng.binomial(span, (self.mean_calls - self.least_calls) / span)
        )


TABLE_2 = (
    GraphClass(0.7322, 1, 1, 4_994.65, 136.86, 1.0),
    GraphClass(0.2609, 2, 10, 21_352.13, 241.19, 4.275),
    GraphClass(0.0050, 11, 20, 51_200.13, 3_258.75, 15.5),
    GraphClass(0.0011, 21, 30, 65_924.80, 9_217.13, 25.5),
    GraphClass(0.0001, 31, 40, 94_096.51, 13_582.78, 35.5),
    GraphClass(0.0001, 41, 50, 161_158.58, 12_874.49, 45.5),
    GraphClass(0.0001, 51, 100, 543_559.74, 22_102.99, 75.5),
)
"""Classes of the FairServe paper; shares are normalised."""


def tokens_per_call(classes: tuple[GraphClass, ...]) -> tuple[float, float]:
    """Return the mean prompt and the mean output of a call over all classes."""
    calls = sum(c.share * c.mean_calls for c in classes)
    prompt = sum(c.share * c.input_tokens for c in classes) / calls
    return prompt, sum(c.share * c.output_tokens for c in classes) / calls


@dataclass(frozen=True)
class AgentApp:
    """Program of one app."""

    app: str
    prompt_tokens: float
    """Mean prompt of a call, in tokens."""
    output_tokens: float
    """Mean output of a call, in tokens."""
    system_share: float = 0.4
    """System prompt as a share of the mean prompt. Each agent has one, equal for all users of the
    app."""
    fan_out_share: float = 0.5
    """Share of fan-outs among interactions with at least three calls."""
    width: int = 8
    """Maximum number of parallel calls."""
    tool_s: float = 0.5
    """Mean seconds before a call that waited for others."""
    input_cv: float = 0.5
    """Coefficient of variation of prompts without the system prompt."""
    output_cv: float = 0.8
    max_prompt_tokens: int = 32_768
    """Maximum prompt tokens; longer prompts are cut."""
    classes: tuple[GraphClass, ...] = TABLE_2

    @property
    def system_tokens(self) -> int:
        """Return the tokens of each agent's system prompt."""
        return round(self.system_share * self.prompt_tokens)

    @cached_property
    def _cumulative_shares(self) -> list[float]:
        shares = np.cumsum([graph.share for graph in self.classes])
        return [float(share) for share in shares / shares[-1]]

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of interactions of a user."""
        run = 0
        while True:
            which = int(np.searchsorted(self._cumulative_shares, rng.random(), side="right"))
            graph = self.classes[min(which, len(self.classes) - 1)]
            number = graph.draw_calls(rng)
            own = TokenLengths(self._own_tokens(graph), self.input_cv).draw(rng)
            # The last call of a chain reads one and a half times the mean.
            own = max(2, min(own, (self.max_prompt_tokens - self.system_tokens) * 2 // 3))
            scale = self.output_tokens / tokens_per_call(self.classes)[1]
            mean_output = max(1.0, scale * graph.output_tokens / graph.mean_calls)
            outputs = TokenLengths(mean_output, self.output_cv)
            if number > 2 and rng.random() < self.fan_out_share:
                steps = _fan_out(number, self.width)
            else:
                steps = [("agent", (index - 1,) if index else ()) for index in range(number)]
            prompts = self._prompts(steps, own, blocks, owner, (client, run))
            calls: list[TraceCall] = []
            for index, ((agent, deps), prompt) in enumerate(zip(steps, prompts, strict=True)):
                gap_s = float(rng.exponential(self.tool_s)) if deps else 0.0
                output = outputs.draw(rng)
                calls.append(call_on(index, agent, deps, prompt, self.system_tokens, output, gap_s))
            yield tuple(calls)
            run += 1

    def _own_tokens(self, graph: GraphClass) -> float:
        """Return the mean prompt of a call of this class without the system prompt."""
        scale = self.prompt_tokens / tokens_per_call(self.classes)[0]
        return scale * graph.input_tokens / graph.mean_calls - self.system_tokens

    def _prompts(
        self,
        steps: list[tuple[str, tuple[int, ...]]],
        own_tokens: int,
        blocks: BlockIds,
        owner: str,
        run: tuple[str, int],
    ) -> Iterator[IdPrefix]:
        """Return the prompts of the calls; besides the system prompt they average ``own_tokens``."""
        query_tokens = own_tokens // 2
        rest = own_tokens - query_tokens
        chain_tokens = own_tokens / max(1, len(steps) - 1)
        context = None
        for index, (agent, _) in enumerate(steps):
            system = blocks.extend(blocks.empty, ("system", owner, agent), self.system_tokens)
            query = blocks.extend(system, ("query", run), query_tokens)
            if len(steps) == 1 or agent != "agent":
                yield blocks.extend(query, ("part", index), rest)
            else:
                grown = round(index * chain_tokens) - round((index - 1) * chain_tokens)
                context = blocks.extend(context, ("step", index), grown) if context else query
                yield context


def _fan_out(number: int, width: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return agent and dependencies of each call: rounds of planner, workers and join."""
    steps: list[tuple[str, tuple[int, ...]]] = []
    last: tuple[int, ...] = ()
    while len(steps) < number:
        left = number - len(steps)
        if left > 1:
            planner = len(steps)
            steps.append(("planner", last))
            workers = range(planner + 1, planner + 1 + min(width, left - 2))
            steps.extend(("worker", (planner,)) for _ in workers)
            last = tuple(workers) or (planner,)
        steps.append(("join", last))
        last = (len(steps) - 1,)
    return steps
