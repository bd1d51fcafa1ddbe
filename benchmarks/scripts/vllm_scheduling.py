"""vLLM with its own schedulers and with the plug-in: fairness, hits, speed, and the plug-in's cost.

    make test-vllm                      # sets up .venv-vllm
    .venv-vllm/bin/python benchmarks/scripts/vllm_scheduling.py --json benchmarks/results/vllm.json

*Shares*: one engine on the CPU, a tiny Llama with synthetic weights, a flood and seven light
clients, all present at once; the same requests under each scheduler, which is put into the same
engine anew, in turn; one client after another (``block``), and shuffled (``mixed``). Service is
``extend tokens + 2 * output tokens``, as weighed in the papers. Jain's index is over the service of
the time in which every client has something waiting or running; hit rate and speed are those of the
whole, speed per second of the process's CPU time, on one thread, and as a share of ``fcfs`` in the
same round.

*Costs*: vLLM's scheduler without an engine, and the plug-in's with the same requests: CPU time of
``schedule`` and ``update_from_output`` per step, with 64 running. ``full``: no request arrives or
ends. ``turnover``: in each step one ends, one arrives, one is admitted. ``blocked``: there is a
free place but too few blocks, and none arrives. ``blocked_arrivals``: the same, and one arrives in
each step. ``overtaken``, with 8 running: in each step a small one arrives and is admitted past all
waiting ones, whose prompts are too long for the free blocks; vLLM's own queue stops at the first of
those. None is protected (``max_bypass=0``). ``first_``: the first step, in which all waiting
requests are new.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}

import vllm
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm_world import DLPMScheduler, World, write_llama

from fairserve.benchmarks.evidence.reports import command_line
from fairserve.scheduling.metrics import jain_index

QUANTUM = "quantum=500"
SYSTEMS = {
    "fcfs": (Scheduler, {}),
    "priority": (Scheduler, {}),
    "vtc": (DLPMScheduler, {"FAIRSERVE_LOCAL_SCHEDULER": "vtc"}),
    "dlpm": (DLPMScheduler, {"FAIRSERVE_SCHEDULER_OPTIONS": QUANTUM}),
}
ARRANGEMENTS = ("block", "mixed")
CALLS = {"flood": 80, **dict.fromkeys("abcdefg", 20)}
PREFIX_TOKENS = 256
MODEL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
WAITING = (10, 1000, 5000)
STATES = ("full", "turnover", "blocked", "blocked_arrivals", "overtaken")
RUNNING = 64
SHORT, TOO_LONG = 8, 720
"""Tokens of a request that fits and of one that does not, in the state ``overtaken``."""
WARM_UP_STEPS, STEPS = 20, 60


# --- shares -----------------------------------------------------------------------------------------


def requests():
    """Return ``(prompt, parameters, priority, client)``: calls of a client share its prefix."""
    rng = random.Random(3)
    for client, calls in CALLS.items():
        prefix = [rng.randrange(3, 500) for _ in range(PREFIX_TOKENS)]
        for _ in range(calls):
            prompt = prefix + rng.choices(range(3, 500), k=rng.randint(20, 80))
            parameters = SamplingParams(
                temperature=0.0,
                max_tokens=rng.randint(8, 24),
                ignore_eos=True,
                detokenize=False,
                extra_args={"client_id": client},
            )
            yield {"prompt_token_ids": prompt}, parameters, int(client == "flood"), client


class ServiceAtVllm:
    """Service of each client, step by step, and its outstanding work."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.got = defaultdict(float)
        self.prompt_tokens = self.hit_tokens = self.output_tokens = 0
        self.at_first_end = None
        self._left = dict(CALLS)
        self._schedule, self._free = scheduler.schedule, scheduler._free_request
        self._output = scheduler._update_request_with_output
        self._seen = set()
        scheduler.schedule, scheduler._free_request = self.schedule, self.free
        scheduler._update_request_with_output = self.output

    @staticmethod
    def client(request):
        return request.sampling_params.extra_args["client_id"]

    def schedule(self, *args, **kwargs):
        output = self._schedule(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            request = self.scheduler.requests[new.req_id]
            if new.req_id in self._seen:
                continue  # resumed: computed again, not served again
            self._seen.add(new.req_id)
            self.prompt_tokens += request.num_prompt_tokens
            self.hit_tokens += new.num_computed_tokens
            self.got[self.client(request)] += request.num_prompt_tokens - new.num_computed_tokens
        return output

    def output(self, request, *args, **kwargs):
        kept, stopped = self._output(request, *args, **kwargs)
        self.got[self.client(request)] += 2 * len(kept)
        self.output_tokens += len(kept)
        return kept, stopped

    def free(self, request, *args, **kwargs):
        client = self.client(request)
        self._left[client] -= 1
        if not self._left[client] and self.at_first_end is None:
            self.at_first_end = dict(self.got)
        return self._free(request, *args, **kwargs)


def put(core, system):
    """Put a new scheduler of this kind into an idle engine."""
    kind, environment = SYSTEMS[system]
    old = core.scheduler
    old.vllm_config.scheduler_config.policy = "priority" if system == "priority" else "fcfs"
    with patch.dict(os.environ, environment):
        new = kind(
            vllm_config=old.vllm_config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=old.structured_output_manager,
            include_finished_set=False,
            log_stats=False,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
        )
    new.finished_req_ids = old.finished_req_ids  # the worker must forget them
    core.scheduler = new
    return new


def shares(rounds):
    """Return ``{(arrangement, system): {figure: [one per round]}}``."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            model=write_llama(folder, **MODEL),
            load_format="dummy",
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=True,
            block_size=32,
            num_gpu_blocks_override=65,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=1024,
            disable_log_stats=True,
        )
    core = llm.llm_engine.engine_core.engine_core
    found, answers = defaultdict(lambda: defaultdict(list)), {}
    for number, arrangement, system in itertools.product(range(rounds + 1), ARRANGEMENTS, SYSTEMS):
        arrived = list(requests())
        if arrangement == "mixed":
            random.Random(5).shuffle(arrived)
        prompts, parameters, priorities, _ = (list(each) for each in zip(*arrived, strict=True))
        service = ServiceAtVllm(put(core, system))
        options = {"priority": priorities} if system == "priority" else {}
        began = time.process_time()
        outputs = llm.generate(prompts, parameters, use_tqdm=False, **options)
        took = time.process_time() - began
        tokens = [output.outputs[0].token_ids for output in outputs]
        assert answers.setdefault(arrangement, tokens) == tokens, "the order changes no output"
        if not number:
            continue  # to warm up
        got = service.at_first_end
        figures = found[arrangement, system]
        figures["jain_index"].append(jain_index([got.get(client, 0.0) for client in CALLS]))
        figures["prefix_hit_rate"].append(service.hit_tokens / service.prompt_tokens)
        all_tokens = service.prompt_tokens + service.output_tokens
        figures["tokens_per_cpu_s"].append(all_tokens / took)
        of_fcfs = found[arrangement, "fcfs"]["tokens_per_cpu_s"][-1]
        figures["speed_of_fcfs"].append(all_tokens / took / of_fcfs)
    return found


# --- costs ------------------------------------------------------------------------------------------


class Timed(World):
    """``RUNNING`` requests decode, others wait; the scheduler's time per step is measured."""

    def __init__(self, kind, state, waiting):
        blocked = state.startswith("blocked")
        steps = WARM_UP_STEPS + STEPS
        overtaken = state == "overtaken"
        running = 8 if overtaken else RUNNING
        growth = running * (steps // 4 + 1)
        super().__init__(
            kind,
            blocks=running * 16 + growth + (4 if blocked or overtaken else 4000),
            max_num_seqs=running + (1 if blocked or overtaken else 0),
            max_num_batched_tokens=8192,
            watermark=growth / (running * 16 + growth) if blocked else 0.0,
            environment={"FAIRSERVE_SCHEDULER_OPTIONS": "max_bypass=0"},
        )
        self.state, self.number = state, itertools.count()
        for index in range(running):
            ends = index + 2 if state == "turnover" else steps + 1
            self.add(f"run{index}", 64, ends, "r")
        while len(self.running()) < running:
            self.step()
        for _ in range(waiting):
            self.arrive(TOO_LONG if overtaken else 35)

    def arrive(self, tokens=35, ends=RUNNING):
        number = next(self.number)
        prompt = [number % 997, number % 991, *range(tokens - 2)]
        if tokens > 32:  # with a shared prefix
            shared = range(number % 50 * 1000, number % 50 * 1000 + 32)
            prompt = [*shared, *prompt[: tokens - 32]]
        self.add(f"w{number}", prompt, ends, f"c{number % 20}")

    def timed_step(self):
        if self.state in ("turnover", "blocked_arrivals"):
            self.arrive()
        elif self.state == "overtaken":
            self.arrive(SHORT, ends=1)
        scheduler, clock = self.scheduler, time.thread_time
        began = clock()
        output = scheduler.schedule()
        took = clock() - began
        ids = list(output.num_scheduled_tokens)
        computed = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[
                [] if scheduler.requests[each].is_prefill_chunk else [9] for each in ids
            ],
        )
        began = clock()
        scheduler.update_from_output(output, computed)
        return took + clock() - began


def costs(rounds):
    """Return seconds per step, ``{(state, waiting, who): [one per round]}``, and of first steps.

    vLLM's own and the plug-in's steps alternate; each round gives the median over its steps.
    """
    found = defaultdict(list)
    for _, state, waiting in itertools.product(range(rounds), STATES, WAITING):
        worlds = {"vllm": Timed(Scheduler, state, waiting)}
        worlds["plugin"] = Timed(DLPMScheduler, state, waiting)
        gc.collect()
        gc.disable()
        times = {who: [] for who in worlds}
        for _ in range(WARM_UP_STEPS + STEPS):
            for who, world in worlds.items():
                times[who].append(world.timed_step())
        gc.enable()
        for who, took in times.items():
            found[state, waiting, who].append(statistics.median(took[WARM_UP_STEPS:]))
            found[f"first_{state}", waiting, who].append(took[0])
    return found


# --- the document -----------------------------------------------------------------------------------


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def figure(name, values, unit, digits=4):
    spread = [round(min(values), digits), round(max(values), digits)]
    return {
        "name": name,
        "value": round(statistics.median(values), digits),
        "unit": unit,
        "spread": spread,
    }


def document(shares_rounds, costs_rounds):
    figures = []
    if shares_rounds:
        for (arrangement, system), found in shares(shares_rounds).items():
            for name, values in found.items():
                unit = "tok/s" if name == "tokens_per_cpu_s" else "1"
                figures.append(figure(f"{arrangement}_{system}_{name}", values, unit))
    if costs_rounds:
        found = costs(costs_rounds)
        for (state, waiting, who), values in found.items():
            if who == "plugin":
                own = found[state, waiting, "vllm"]
                more = [1e6 * (a - b) for a, b in zip(values, own, strict=True)]
                figures.append(figure(f"{state}_{waiting}_more", more, "us per step", 1))
                ours = [1e6 * value for value in own]
                figures.append(figure(f"{state}_{waiting}_vllm", ours, "us per step", 1))
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "vllm": vllm.__version__,
    }
    rounds = {"shares": shares_rounds, "costs": costs_rounds}
    return {"machine": machine, "rounds": rounds, "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the document")
    parser.add_argument("--shares-rounds", type=int, default=15, help="0: none of these")
    parser.add_argument("--costs-rounds", type=int, default=5, help="0: none of these")
    values = parser.parse_args()
    settings = {"shares-rounds": values.shares_rounds, "costs-rounds": values.costs_rounds}
    result = document(values.shares_rounds, values.costs_rounds)
    for each in result["figures"]:
        low, high = each["spread"]
        print(f"{each['name']:32} {each['value']:>12} {each['unit']:12} {low} to {high}")
    if values.json:
        result["command"] = command_line("python benchmarks/scripts/vllm_scheduling.py", settings)
        values.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
