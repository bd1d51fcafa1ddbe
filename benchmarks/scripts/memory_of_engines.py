"""Prefix hits of agent sessions whose contexts exceed the KV cache: two engines beside the simulator.

    make test-vllm                      # sets up .venv-vllm
    .venv-vllm/bin/python benchmarks/scripts/memory_of_engines.py

Sessions of several turns: each prompt is the previous one, its output and new tokens, so contexts
grow; all begin with one system prompt. Their *working set* is the sum over the sessions of the mean
context, as a share of the KV cache. The same sessions run in vLLM on the CPU, in the embedded engine,
and in the simulator with the loop ``paged`` (of which ``reserving`` is the loop ``prefill-first``).

Speed plays no part: time is counted in forward passes, in the engines and in the cost model, in
which each pass takes one second. A call arrives a drawn number of passes after the end of the
previous one. Hit rate: cached over all prompt tokens, at the first admission of each call.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}

from pass_costs import pass_costs

from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.traces.model import Trace, TraceCall, TraceInteraction
from fairserve.scheduling.registry import SYSTEMS

SHARES = (0.5, 1.0, 1.5, 2.5)
KV_TOKENS = 8192
SYSTEM_TOKENS = 64
TURNS = 8
MAX_RUNNING = 8
PASS_TOKENS = 256
VOCABULARY = (3, 250)
VLLM_BLOCK, TORCH_BLOCK = 32, 16
MODEL = {"max_position_embeddings": 2048}


@dataclass(frozen=True)
class MemoryTurn:
    """A call of a session."""

    new_tokens: tuple[int, ...]
    """Tokens after the previous prompt and its output."""
    output_tokens: int
    pause: float
    """Passes between the end of the previous call, or the start, and this one."""


Session = Sequence[MemoryTurn]


def sessions(share: float, seed: int) -> list[Session]:
    """Return sessions with this working set as a share of ``KV_TOKENS``."""
    rng, made, working_set = random.Random(seed), [], 0.0  # noqa: S311
    system = tuple(rng.choices(range(*VOCABULARY), k=SYSTEM_TOKENS))

    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(*VOCABULARY), k=rng.randint(least, most)))

    while working_set < share * KV_TOKENS:
        turns = [MemoryTurn(system + tokens(100, 400), rng.randint(5, 30), rng.uniform(0, 100))]
        turns += [
            MemoryTurn(tokens(20, 120), rng.randint(5, 30), rng.uniform(0, 60))
            for _ in range(TURNS - 1)
        ]
        made.append(turns)
        lengths = list(prompt_lengths(turns))
        working_set += sum(lengths) / len(lengths)
    return made


def prompt_lengths(session: Session) -> Iterator[int]:
    """Yield the prompt tokens of each call."""
    length = 0
    for turn in session:
        length += len(turn.new_tokens)
        yield length
        length += turn.output_tokens


# --- simulator ----------------------------------------------------------------------------------------


def simulated(made: Sequence[Session], block: int, loop: str) -> float:
    """Return the hit rate in the simulator, through the whole replay."""
    shared, runs = SYSTEM_TOKENS // block, []
    for number, session in enumerate(made):
        own = shared + 10_000 * (number + 1)
        calls = [
            TraceCall(
                str(at),
                "agent",
                (str(at - 1),) if at else (),
                turn.pause,
                length,
                0,
                turn.output_tokens,
                blocks=((0, shared), (own, length // block - shared)),
            )
            for at, (turn, length) in enumerate(zip(session, prompt_lengths(session), strict=True))
        ]
        runs.append(TraceInteraction(f"s{number}", "t", "a", "u", 0.0, tuple(calls)))
    costs = pass_costs(KV_TOKENS, running=MAX_RUNNING, budget=PASS_TOKENS, loop=loop)
    trace = Trace("sessions", block, ()).with_interactions(runs)
    calls = Replay(trace, SYSTEMS["fcfs"], costs).run().calls
    prompt_tokens = sum(call.usage.prompt_tokens for call in calls)
    return sum(call.usage.cached_tokens for call in calls) / prompt_tokens


# --- engines ------------------------------------------------------------------------------------------


def driven(engine: Any, made: Sequence[Session]) -> float:
    """Run the sessions on an engine, whose passes are the time; return its hit rate."""
    order = itertools.count()  # of calls that are due in the same pass, as in the replay
    due = [
        (turns[0].pause, next(order), number, 0, turns[0].new_tokens)
        for number, turns in enumerate(made)
    ]
    heapq.heapify(due)
    prompts: dict[str, tuple[int, int, tuple[int, ...]]] = {}
    now = 0.0
    while due or prompts:
        if not prompts:
            now = max(now, due[0][0])
        while due and due[0][0] <= now:
            _, _, number, at, prompt = heapq.heappop(due)
            call_id = f"{number}/{at}"
            prompts[call_id] = number, at, prompt
            engine.add(call_id, prompt, made[number][at].output_tokens)
        ended = engine.step()
        now += 1.0
        for call_id, output in ended:
            number, at, prompt = prompts.pop(call_id)
            if at + 1 < len(made[number]):
                turn = made[number][at + 1]
                longer = (*prompt, *output, *turn.new_tokens)
                heapq.heappush(due, (now + turn.pause, next(order), number, at + 1, longer))
    return engine.hit_rate()


class VllmEngine:
    """vLLM on the CPU, in this process."""

    name, block = "vllm", VLLM_BLOCK

    def __init__(self) -> None:
        from vllm import LLM, SamplingParams
        from vllm_world import write_llama

        self._parameters = SamplingParams
        with tempfile.TemporaryDirectory() as folder:
            self._llm = LLM(
                model=write_llama(folder, **MODEL),
                load_format="dummy",
                dtype="float32",
                skip_tokenizer_init=True,
                enforce_eager=True,
                enable_prefix_caching=True,
                block_size=VLLM_BLOCK,
                num_gpu_blocks_override=KV_TOKENS // VLLM_BLOCK + 1,  # vLLM keeps one for itself
                max_num_seqs=MAX_RUNNING,
                max_num_batched_tokens=PASS_TOKENS,
                max_model_len=2048,
                disable_log_stats=False,
            )
        self._engine = self._llm.llm_engine
        self._before = (0, 0)

    def add(self, call_id: str, prompt: Sequence[int], output_tokens: int) -> None:
        """Add a call."""
        parameters = self._parameters(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(call_id, {"prompt_token_ids": list(prompt)}, parameters)

    def step(self) -> list[tuple[str, tuple[int, ...]]]:
        """Run a pass; return the calls that ended, with their outputs."""
        return [
            (each.request_id, tuple(each.outputs[0].token_ids))
            for each in self._engine.step()
            if each.finished
        ]

    def hit_rate(self) -> float:
        """Return the hit rate since the last call, and forget the cache."""
        values = {each.name: getattr(each, "value", 0) for each in self._llm.get_metrics()}
        hits, queries = values["vllm:prefix_cache_hits"], values["vllm:prefix_cache_queries"]
        rate = (hits - self._before[0]) / (queries - self._before[1])
        self._before = hits, queries
        assert self._llm.reset_prefix_cache()
        return float(rate)


class TorchEngine:
    """The embedded engine on the CPU, in this process."""

    name, block = "torch", TORCH_BLOCK

    def __init__(self) -> None:
        import torch

        from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
        from fairserve.engine.torch.model_loader import load_model

        torch.set_num_threads(1)
        self._model = load_model(BUILTIN_MODEL_NAME, device="cpu")
        self._start()

    def _start(self) -> None:
        from fairserve.engine.torch.engine import Engine
        from fairserve.engine.torch.engine_options import EngineOptions
        from fairserve.scheduling.local.fcfs import Fcfs

        options = EngineOptions(KV_TOKENS, MAX_RUNNING, PASS_TOKENS, preemption="latest")
        self._events: list[Any] = []
        self._sequences: dict[str, Any] = {}
        self._engine = Engine(self._model, Fcfs(), options, self._events.extend)

    def add(self, call_id: str, prompt: Sequence[int], output_tokens: int) -> None:
        """Add a call."""
        import numpy as np

        from fairserve.engine.torch.sampling_params import SamplingParams
        from fairserve.engine.torch.sequence import SequenceRequest

        parameters = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True)
        tokens = np.array(prompt, dtype=np.uint32)
        self._engine.add(SequenceRequest(call_id, "client", tokens, parameters))
        self._sequences[call_id] = self._engine.batcher.waiting[call_id]

    def step(self) -> list[tuple[str, tuple[int, ...]]]:
        """Run a pass; return the calls that ended, with their outputs."""
        from fairserve.engine.torch.events import Generated

        self._engine.step()
        ended = []
        for event in self._events:
            if isinstance(event, Generated) and event.finish_reason is not None:
                sequence = self._sequences.pop(event.sequence_id)
                ended.append((event.sequence_id, tuple(sequence.tokens[sequence.prompt_tokens :])))
        self._events.clear()
        return ended

    def hit_rate(self) -> float:
        """Return the hit rate, and begin with an empty cache."""
        batcher = self._engine.batcher
        rate = batcher.hit_tokens / batcher.queried_tokens
        self._start()
        return rate


ENGINES = {"vllm": VllmEngine, "torch": TorchEngine}


def main() -> None:
    """Run the engines and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print("engine  share  seed  sessions  measured  paged  reserving")
    for name in arguments.engines:
        engine = ENGINES[name]()
        for share in SHARES:
            for seed in arguments.seeds:
                began = time.monotonic()
                made = sessions(share, seed)
                rates = {
                    "measured": driven(engine, made),
                    "paged": simulated(made, engine.block, "paged"),
                    "reserving": simulated(made, engine.block, "prefill-first"),
                }
                rows.append({"engine": name, "share": share, "seed": seed, **rates})
                print(
                    f"{name:6} {share:6} {seed:5} {len(made):9} {rates['measured']:9.3f}"
                    f" {rates['paged']:6.3f} {rates['reserving']:10.3f}"
                    f"   {time.monotonic() - began:.1f} s",
                    flush=True,
                )
    worst = {
        name: max(abs(row["measured"] - row["paged"]) for row in rows if row["engine"] == name)
        for name in arguments.engines
    }
    print("greatest difference:", ", ".join(f"{name} {value:.3f}" for name, value in worst.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
