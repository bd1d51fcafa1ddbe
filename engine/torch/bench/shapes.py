"""Models of random weights for benchmarks: speed depends on sizes, not on values.

Nothing is downloaded or written: a model is built in memory, on its device, from a seed. Its
tokenizer maps every token to some bytes, so that detokenisation costs as much as with a real one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from fairserve.engine.torch.attention import ATTENTION_NAME
from fairserve.engine.torch.detokenizer import byte_characters
from fairserve.engine.torch.model_loader import (
    LoadedModel,
    adopt_model,
    choose_device,
    choose_dtype,
)
from fairserve.engine.torch.packed_linear import pack_linears

_SEED = 20251
MAX_POSITIONS = 16_384
"""Maximum tokens of a sequence: more than the largest token budget, and outputs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama model."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool = False
    """True if the output layer uses the embedding's weights."""


SHAPES: Mapping[str, Shape] = {
    "5m": Shape(4096, 256, 688, 4, 8, 4, 32),
    "100m": Shape(32_000, 768, 2048, 8, 12, 4, 64),
    "0.6b": Shape(151_936, 1024, 3072, 28, 16, 8, 128, tied=True),
    "8b": Shape(128_256, 4096, 14_336, 32, 32, 8, 128),
}
"""Shapes by name: ``0.6b`` has the sizes of Qwen3-0.6B, ``8b`` those of Llama 3.1 8B."""


def build(name: str, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Return a model of one of the shapes; weights are equal for equal name, type and device.

    Raises KeyError for an unknown shape, ValueError for a type or device that is not available.
    """
    shape = SHAPES[name]
    where = choose_device(device)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    gpus = [where] if where.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), torch.device(where):
        torch.manual_seed(_SEED)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=choose_dtype(dtype, where), attn_implementation="sdpa"
        )
    return adopt_model(f"random-{name}", model, _tokenizer(shape.vocabulary))


def twin(loaded: LoadedModel) -> Any:
    """Return the same weights as transformers' own model with its own attention.

    The tensors are shared, the modules are not, so each can use a different attention.
    """
    model = loaded.model
    shared = {id(each): each for each in itertools.chain(model.parameters(), model.buffers())}
    other = copy.deepcopy(model, shared)
    other.set_attn_implementation("sdpa")
    return other


def served(loaded: LoadedModel) -> LoadedModel:
    """Return the same weights as used by a worker, packed on a CPU."""
    model = twin(loaded)
    model.set_attn_implementation(ATTENTION_NAME)
    packed = pack_linears(model)
    return replace(loaded, model=model, pads_rows=packed > 0)


def _tokenizer(vocabulary: int) -> Any:
    """Return a byte-level tokenizer: 256 bytes, then texts of two bytes, then of three."""
    from tokenizers import Tokenizer, decoders, models

    characters = byte_characters()
    texts = itertools.chain.from_iterable(
        map("".join, itertools.product(characters, repeat=length)) for length in (1, 2, 3)
    )
    tokens = {text: number for number, text in enumerate(itertools.islice(texts, vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]


def parameter_counts(loaded: LoadedModel) -> tuple[int, int, int]:
    """Return the counts of all weights, of the layers', and of the output layer's (tied or not)."""
    model = loaded.model
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings().weight
    everything = sum(each.numel() for each in model.parameters())
    outside = {id(each): each.numel() for each in (embedding, output)}
    return everything, everything - sum(outside.values()), output.numel()
