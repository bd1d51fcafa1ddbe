"""The real engine runs in this process: a tiny Llama with random weights, and two clients.

One client floods with a long shared prefix, one sends short unrelated prompts. Whatever the order,
greedy outputs equal those of vLLM's own scheduler, and the order equals a naive Algorithm 1. One
engine is started for all; each scheduler starts with an empty cache.
"""

import importlib.util
import random

import pytest
import torch
from both_dlpm import BothDlpm
from vllm_world import (
    BLOCK,
    DLPMAsyncScheduler,
    DLPMScheduler,
    inspect_models_here,
    write_llama,
)

from fairserve.scheduling.local.dlpm_options import DlpmOptions

if importlib.util.find_spec("vllm._C") is None:
    pytest.skip("this build of vLLM has no kernels for CPUs", allow_module_level=True)

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.core.sched.scheduler import Scheduler

CPU_BLOCK = 8 * BLOCK
OPTIONS = DlpmOptions(quantum=300.0)


class Recorded:
    """Compares each offer with the naive reference, and records the order of admissions."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.arguments = arguments
        self.waiting.local = self.both = BothDlpm(OPTIONS, self.cached_tokens)
        self.admitted = []

    def cached_tokens(self, call):
        request = self.requests[call.call_id]
        coordinator = self.kv_cache_manager.coordinator
        return coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]

    def schedule(self, *args, **kwargs):
        before = set(self.running)
        output = super().schedule(*args, **kwargs)
        self.both.close()
        entered = [request for request in self.running if request not in before]
        clients = [request.sampling_params.extra_args["client_id"] for request in entered]
        self.admitted += clients
        return output


class Recording(Recorded, DLPMScheduler):
    pass


class RecordingAsync(Recorded, DLPMAsyncScheduler):
    """A recording scheduler for asynchronous engines; on a CPU it works without running ahead."""


def traffic():
    """Return sixty requests of the flood, followed by six of the other client."""
    rng = random.Random(5)
    shared = [rng.randrange(3, 500) for _ in range(6 * CPU_BLOCK)]
    flood = [
        (shared + rng.choices(range(3, 500), k=rng.randint(5, 60)), "flood") for _ in range(60)
    ]
    light = [(rng.choices(range(3, 500), k=rng.randint(20, 90)), "light") for _ in range(6)]
    return [*flood, *light]


@pytest.fixture
def llm(monkeypatch, tmp_path):
    """Yield a started engine, whose scheduler is a Recording that vLLM made."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    # One thread on any core: several spinning threads would stall on a busy machine.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    torch.set_num_threads(1)
    with inspect_models_here():
        yield LLM(
            model=write_llama(tmp_path),
            load_format="dummy",
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=True,
            block_size=CPU_BLOCK,
            num_gpu_blocks_override=60,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=1024,
            scheduler_cls=Recording,
            disable_log_stats=True,
        )
    cleanup_dist_env_and_memory()


def replace_scheduler(core, kind, arguments):
    """Give the engine another scheduler, created as the engine created its first one."""
    ended = core.scheduler.finished_req_ids  # the model runner has not dropped them yet
    core.scheduler = kind(**arguments)
    core.scheduler.finished_req_ids |= ended


def generate(llm):
    """Return outputs by request, and check that the scheduler has dropped everything."""
    prompts, parameters = [], []
    for number, (tokens, client) in enumerate(traffic()):
        prompts.append({"prompt_token_ids": tokens})
        parameters.append(
            SamplingParams(
                temperature=0.0,
                max_tokens=4 + number % 9,
                ignore_eos=True,
                detokenize=False,
                extra_args={"client_id": client, "call_id": f"c{number}", "weight": 1.0},
            )
        )
    answers = llm.generate(prompts, parameters, use_tqdm=False)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert not scheduler.requests
    return [answer.outputs[0].token_ids for answer in answers]


def test_outputs_equal_vllm_and_the_order_equals_dlpm(llm):
    core = llm.llm_engine.engine_core.engine_core
    arguments = core.scheduler.arguments
    outputs = {}
    for kind in (Recording, RecordingAsync):
        if type(core.scheduler) is not kind:
            replace_scheduler(core, kind, arguments)
        outputs[kind] = generate(llm)
        scheduler, both = core.scheduler, core.scheduler.both
        assert both.offers >= 66
        assert len(both) == 0
        assert both.plain.waiting == both.plain.running == {}
        assert len(scheduler.admitted) >= 66
        last = max(at for at, client in enumerate(scheduler.admitted) if client == "light")
        assert last < 30, "in the order of arrival they would be the last six"
    replace_scheduler(core, Scheduler, arguments)
    expected = generate(llm)
    assert [len(output) for output in expected] == [4 + number % 9 for number in range(66)]
    assert outputs == dict.fromkeys((Recording, RecordingAsync), expected)
