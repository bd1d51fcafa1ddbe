"""vLLM's scheduler with the plug-in and without an engine: a fake model runner returns tokens.

It is imported only by the tests in tests/vllm, which ``make test-vllm`` runs beside vLLM.
"""

import json
import os
import tempfile
from collections import deque
from functools import cache
from unittest.mock import patch

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-vllm` runs these")
os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING")

import vllm.platforms
from vllm.platforms import current_platform

if not current_platform.device_type:  # the official wheel on a machine without a GPU
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from fairserve.engine.vllm.scheduler import DLPMAsyncScheduler, DLPMScheduler
from fairserve.scheduling.local.dlpm import Dlpm

BLOCK = 4
BOTH = pytest.mark.parametrize("kind", [DLPMScheduler, DLPMAsyncScheduler])
"""Mark of tests that both schedulers have to pass."""

LONGEST = 1024
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": LONGEST,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_llama(folder, **changes):
    """Write the config of a tiny Llama, for which vLLM generates weights."""
    path = os.path.join(folder, "config.json")
    with open(path, "w") as file:
        json.dump({**LLAMA, **changes}, file)
    return str(folder)


def inspect_models_here():
    """Let vLLM inspect a model's class in this process, rather than in one that imports vLLM again."""
    return patch(
        "vllm.model_executor.models.registry._run_in_subprocess", lambda inspect: inspect()
    )


@cache
def model_config():
    """Return one model config for all tests: the first one takes vLLM seconds."""
    init_none_hash(sha256)
    folder = write_llama(tempfile.mkdtemp())
    with inspect_models_here():
        return ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST
        )


def make_scheduler(kind, blocks=65, environment=None, groups=None, ahead=False, **options):
    """Return a scheduler over ``blocks`` blocks, one of which vLLM keeps for itself."""
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **options}
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_model_len=LONGEST, enable_chunked_prefill=True, is_encoder_decoder=False, **options
        ),
        model_config=model_config(),
        cache_config=CacheConfig(
            block_size=BLOCK, gpu_memory_utilization=0.5, enable_prefix_caching=True
        ),
    )
    config.cache_config.num_gpu_blocks = blocks
    config.scheduler_config.async_scheduling = ahead  # off on CPUs whatever the option
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = groups or [KVCacheGroupSpec(["layer"], spec)]
    with patch.dict(os.environ, environment or {}):
        return kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )


class World:
    """A scheduler, and a model that generates each request's own numbers until ``max_tokens``."""

    def __init__(self, kind=DLPMScheduler, **options):
        self.scheduler = make_scheduler(kind, **options)
        self.queue = self.scheduler.waiting
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.in_flight = deque()
        self.depth = 2 if kind is DLPMAsyncScheduler else 1
        """Steps scheduled before the outputs of the first arrive."""
        self.requests = {}
        self.admitted = []
        """Request ids in the order in which they entered the batch, repeated after a preemption."""
        self.generated = {}
        self.ended = set()

    def request(self, request_id, tokens, max_tokens=4, resumable=False, salt=None, **xargs):
        params = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, extra_args=xargs or None, temperature=0.0
        )
        return Request(
            request_id,
            list(tokens),
            params,
            None,
            arrival_time=float(len(self.requests)),
            block_hasher=self.hasher,
            resumable=resumable,
            cache_salt=salt,
        )

    def add(self, request_id, tokens, max_tokens=4, client=None, **more):
        """Add a request; ``tokens`` is the length of an unshared prompt, or the prompt."""
        if isinstance(tokens, int):
            first = 1000 * (len(self.requests) + 1)
            tokens = range(first, first + tokens)
        if client is not None:
            more["client_id"] = client
        request = self.request(request_id, tokens, max_tokens, **more)
        self.requests[request_id] = request
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id):
        self.ended.add(request_id)
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def schedule(self):
        """Schedule one step; return the ids that entered the batch."""
        before = set(self.running())
        output = self.scheduler.schedule()
        sampled = {
            request_id: []
            if self.scheduler.requests[request_id].is_prefill_chunk
            else [7 + len(request_id)]
            for request_id in output.num_scheduled_tokens
        }
        self.in_flight.append((output, sampled))
        entered = [each for each in self.running() if each not in before]
        self.admitted += entered
        return entered

    def update(self):
        """Apply the output of the oldest step in flight."""
        output, sampled = self.in_flight.popleft()
        ids = list(output.num_scheduled_tokens)
        answers = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={each: index for index, each in enumerate(ids)},
                sampled_token_ids=[sampled[each] for each in ids],
            ),
        )
        for answer in answers.values():
            for each in answer.outputs:
                got = self.generated.setdefault(each.request_id, [])
                got += each.new_token_ids
                if each.finish_reason is not None:
                    self.ended.add(each.request_id)

    def step(self):
        entered = self.schedule()
        if len(self.in_flight) >= self.depth:
            self.update()
        return entered

    def drain(self, steps=20_000):
        """Run until nothing is left, then check that no state is left."""
        for _ in range(steps):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        while self.in_flight:
            self.update()
        self.check_empty()

    def running(self):
        return [request.request_id for request in self.scheduler.running]

    def waiting(self):
        return [request.request_id for request in self.queue]

    def check_empty(self):
        scheduler, queue = self.scheduler, self.queue
        assert not scheduler.has_unfinished_requests()
        assert not scheduler.requests
        assert self.ended == set(self.requests)
        assert self.pool.get_num_free_blocks() == self.pool.num_gpu_blocks - 1
        assert (len(queue), bool(queue), list(queue)) == (0, False, [])
        assert len(queue.local) == 0
        left = [queue._members, queue._apart, queue._runs, queue._view._found]
        assert left == [{}] * 4


class Ledger:
    """A local scheduler that records another one's events, in ``events``."""

    def __init__(self, local):
        self.local, self.events, self._peeked = local, [], None
        self.left = {}
        """Deficits by client when their last call ended: they may be evicted then."""

    def __len__(self):
        return len(self.local)

    def __getattr__(self, name):
        return getattr(self.local, name)

    def peek(self):
        self._peeked = self.local.peek()
        return self._peeked

    def accept(self, cached_tokens):
        self.events.append(("accept", self._peeked.call_id, cached_tokens))
        self.local.accept(cached_tokens)

    def skip(self):
        self.events.append(("skip", self._peeked.call_id))
        self.local.skip()

    def requeue(self, call_id):
        self.events.append(("requeue", call_id))
        self.local.requeue(call_id)

    def decoded(self, call_id, tokens):
        self.events.append(("decoded", call_id, tokens))
        self.local.decoded(call_id, tokens)

    def finish(self, call_id):
        self.events.append(("finish", call_id))
        if isinstance(self.local, Dlpm):
            client = self.local._calls[call_id].call.client_id
            self.left[client] = self.local.deficit(client)
        self.local.finish(call_id)

    def of(self, kind, call_id=None):
        return [e for e in self.events if e[0] == kind and call_id in (None, e[1])]

    def tokens(self, call_id):
        return sum(event[2] for event in self.of("decoded", call_id))


def watch(world):
    """Put a ledger before the world's local scheduler."""
    world.queue.local = Ledger(world.queue.local)
    return world.queue.local
