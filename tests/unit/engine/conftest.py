"""Fixtures for small seeded checkpoints, and an engine that is stepped by hand."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from checkpoints import write_checkpoint
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME, ensure_builtin_model
from fairserve.engine.torch.engine import Engine
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import Admitted, Failed, Generated
from fairserve.engine.torch.model_loader import load_model
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.scheduling.local.fcfs import Fcfs


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Compute in one thread: several test processes would otherwise share the same cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def llama(llama_folder):
    return load_model(str(llama_folder), device="cpu")


@pytest.fixture(scope="session")
def builtin():
    return load_model(BUILTIN_MODEL_NAME, device="cpu")


@pytest.fixture(scope="session")
def byte_level():
    return AutoTokenizer.from_pretrained(ensure_builtin_model())


@pytest.fixture(scope="session")
def sentence_piece():
    """Return a tokenizer of words with a mark for the space, and of all bytes, from id 6 on."""
    words = {"▁Hello": 0, "▁world": 1, "wor": 2, "ld": 3, "!": 4, "▁": 5}
    vocab = words | {f"<0x{byte:02X}>": 6 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@dataclass
class Bench:
    """An engine, all of its events, and shorthands."""

    engine: Engine = None
    events: list = field(default_factory=list)

    def add(self, name, tokens, max_tokens=8, *, client="c", group="", salt="", **params):
        params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0, **params})
        self.add_params(name, tokens, params, client=client, group=group, salt=salt)

    def add_params(self, name, tokens, params, *, client="c", group="", salt=""):
        self.engine.add(
            SequenceRequest(
                sequence_id=name,
                client_id=client,
                token_ids=np.array(tokens, dtype=np.uint32),
                params=params,
                group_id=group,
                salt=salt,
            )
        )

    def run(self):
        while self.engine.step():
            self.engine.cache.check(self.engine.running)
        assert not self.engine.has_work
        self.engine.cache.check([])

    def of(self, name, kind):
        return [e for e in self.events if e.sequence_id == name and isinstance(e, kind)]

    def cached(self, name):
        (admitted,) = self.of(name, Admitted)
        return admitted.cached_tokens

    def text(self, name):
        return "".join(event.text for event in self.of(name, Generated))

    def finish_reason(self, name):
        return self.of(name, Generated)[-1].finish_reason

    def error(self, name):
        (failed,) = self.of(name, Failed)
        return failed.message


@pytest.fixture(params=[False, True], ids=["in_turn", "overlapped"])
def overlap(request):
    """Run a test with and without steps that are launched before the tokens of the previous one."""
    return request.param


def make_new_bench(loaded, scheduler=None, **options):
    """Return a bench whose engine is small unless the options say otherwise."""
    bench = Bench()
    sizes = {"kv_tokens": 1024, "max_batch": 8, "token_budget": 64}
    options = EngineOptions(**sizes | options)
    bench.engine = Engine(
        loaded, Fcfs() if scheduler is None else scheduler, options, bench.events.extend
    )
    return bench


@pytest.fixture(scope="session")
def new_bench():
    """Return the function that makes a bench, for property tests."""
    return make_new_bench


@pytest.fixture
def make_bench(llama, overlap):
    def make(loaded=llama, scheduler=None, **options):
        return make_new_bench(loaded, scheduler, **{"overlap": overlap, **options})

    return make
