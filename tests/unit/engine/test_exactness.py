"""Greedy output equals that of transformers, token for token, however it was batched."""

import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, write_checkpoint
from transformers import AutoModelForCausalLM

from fairserve.engine.torch import packed_linear
from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.engine.torch.engine import Engine
from fairserve.engine.torch.events import Admitted
from fairserve.engine.torch.model_loader import load_model
from fairserve.scheduling.local.vtc import Vtc


class Oracle:
    """Greedy decoding by an untouched copy of the checkpoint."""

    def __init__(self, folder, eos_ids):
        self.model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        self.eos_ids = eos_ids

    @torch.inference_mode()
    def check(self, prompt, output, max_tokens):
        """Check that every token is the most likely one after all before it, and the end is correct.

        By induction the output is what the model generates, in one pass instead of one per token.
        """
        ids = torch.tensor([prompt + output])
        logits = self.model(ids).logits[0, len(prompt) - 1 : -1]
        assert output == logits.argmax(-1).tolist()
        assert self.eos_ids.isdisjoint(output[:-1])
        assert len(output) == max_tokens or output[-1] in self.eos_ids


@pytest.fixture(scope="session")
def llama_oracle(llama_folder, llama):
    return Oracle(llama_folder, llama.eos_ids)


@pytest.fixture(scope="session", params=FAMILIES)
def family(request, tmp_path_factory):
    """Return a small model with its oracle; its layers are packed like those of larger ones."""
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_linear, "_LEAST_ELEMENTS", 1)
        loaded = load_model(str(folder), device="cpu")
    return loaded, Oracle(folder, loaded.eos_ids)


@pytest.fixture
def outputs(monkeypatch):
    """Return the token ids of every sequence that ends, by its id."""
    ended = {}
    end = Engine._end

    def record(self, sequence, keep):
        ended[sequence.sequence_id] = sequence.output_tokens
        end(self, sequence, keep)

    monkeypatch.setattr(Engine, "_end", record)
    return ended


def prompts(seed, lengths, shared=0):
    random = np.random.default_rng(seed)
    start = random.integers(0, 256, shared).tolist()
    return [start + random.integers(0, 256, length).tolist() for length in lengths]


# Overlapping steps does not depend on the family, so one is enough for `make test`.
OF_FAMILIES = pytest.mark.parametrize(
    ("family", "overlap"),
    [
        pytest.param(name, overlap, marks=pytest.mark.deep if overlap and name != "llama" else ())
        for name in FAMILIES
        for overlap in (False, True)
    ],
    indirect=["family"],
)


@OF_FAMILIES
def test_single_calls_are_exact_with_and_without_reuse(family, make_bench, outputs):
    loaded, oracle = family
    bench = make_bench(loaded)
    for length in (1, 15, 16, 17, 33, 150):
        (prompt,) = prompts(length, [length])
        for turn in ("first", "again"):
            bench.add(f"{length} {turn}", prompt, 12)
            bench.run()
            oracle.check(prompt, outputs[f"{length} {turn}"], 12)
        assert bench.cached(f"{length} first") == 0
        assert bench.cached(f"{length} again") == (length - 1) // 16 * 16


def test_the_next_turn_reuses_the_output_exactly(make_bench, outputs, llama_oracle):
    bench = make_bench()
    (prompt,) = prompts(1, [40])
    bench.add("one", prompt, 30)
    bench.run()
    second = prompt + outputs["one"] + [5, 6, 7]
    bench.add("two", second, 10)
    bench.run()
    # The last token of an output is never fed back, so 69 tokens are computed: four pages.
    assert bench.cached("two") == 64
    llama_oracle.check(second, outputs["two"], 10)


@OF_FAMILIES
def test_a_mixed_batch_is_exact(family, make_bench, outputs):
    loaded, oracle = family
    bench = make_bench(loaded, token_budget=24)
    lengths = [3, 90, 17, 200, 31, 64, 5, 120]
    given = prompts(2, lengths)
    for index, prompt in enumerate(given):
        bench.add(f"s{index}", prompt, 4 + 3 * index)
        bench.engine.step()
    bench.run()
    for index, prompt in enumerate(given):
        oracle.check(prompt, outputs[f"s{index}"], 4 + 3 * index)


def test_a_shared_prefix_in_one_batch_is_exact(make_bench, outputs, llama_oracle):
    bench = make_bench()
    given = prompts(3, [5, 9, 20, 1], shared=48)
    for index, prompt in enumerate(given):
        bench.add(f"s{index}", prompt, 10)
    bench.run()
    for index, prompt in enumerate(given):
        llama_oracle.check(prompt, outputs[f"s{index}"], 10)
    bench.add("later", given[2], 10)
    bench.run()
    assert bench.cached("later") == 64
    llama_oracle.check(given[2], outputs["later"], 10)


def test_output_is_exact_under_eviction(make_bench, outputs, llama_oracle):
    evicted = []
    bench = make_bench(kv_tokens=20 * 16, max_batch=4)
    bench.engine.cache.trie.on_evict = evicted.append
    random = np.random.default_rng(4)
    pool = prompts(5, [20, 40, 60, 80, 100, 120])
    asked = {}
    for index in range(40):
        prompt = pool[int(random.integers(len(pool)))]
        cut = int(random.integers(1, len(prompt) + 1))
        asked[f"s{index}"] = prompt[:cut]
        bench.add(f"s{index}", prompt[:cut], 6)
        for _ in range(int(random.integers(4))):
            bench.engine.step()
    bench.run()
    assert len(evicted) > 20
    assert bench.engine.stats().prefix_hit_tokens > 100
    for name, prompt in asked.items():
        llama_oracle.check(prompt, outputs[name], 6)


# Recomputation does not depend on the family, so one is enough for `make test`.
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name == "llama" else pytest.mark.deep) for name in FAMILIES],
    indirect=True,
)
@pytest.mark.parametrize("preemption", ["fair", "latest"])
def test_output_is_exact_under_preemption(preemption, family, make_bench, outputs):
    """The cache has exactly space for three of six outputs: evicted tokens are computed again."""
    loaded, oracle = family
    bench = make_bench(
        loaded, Vtc(), kv_tokens=9 * 16, preemption=preemption, spare_share=0.0, token_budget=40
    )
    given = prompts(7, [5, 30, 17, 44, 60, 16])
    for index, prompt in enumerate(given):
        bench.add(f"s{index}", prompt, 40, client=f"c{index % 3}")
    bench.run()
    assert bench.engine.stats().preempted >= 3
    for index, prompt in enumerate(given):
        oracle.check(prompt, outputs[f"s{index}"], 40)
        assert len(bench.of(f"s{index}", Admitted)) == 1


def test_salts_share_nothing(make_bench, outputs):
    bench = make_bench()
    (prompt,) = prompts(6, [50])
    for name, salt in (("a1", "a"), ("b1", "b"), ("none", ""), ("a2", "a")):
        bench.add(name, prompt, 4, salt=salt)
        bench.run()
    assert [bench.cached(name) for name in ("a1", "b1", "none", "a2")] == [0, 0, 0, 48]
    assert outputs["a1"] == outputs["b1"] == outputs["a2"]


def test_the_built_in_model_is_exact(make_bench, outputs, builtin):
    """Compare with generate itself."""
    bench = make_bench(builtin)
    prompt = builtin.tokenizer("Hello, wörld")["input_ids"]
    bench.add("s", prompt, 20)
    bench.run()
    model = AutoModelForCausalLM.from_pretrained(ensure_builtin_model())
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False
    )
    assert outputs["s"] == expected[0, len(prompt) :].tolist()
