"""Models that the paged engine cannot serve are rejected with the reason."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    T5Config,
)

from fairserve.engine.torch.model_loader import (
    UnsupportedModelError,
    check_config,
    check_paged_attention,
    load_model,
)


def test_the_properties_of_a_model_are_read(llama):
    assert (llama.layers, llama.kv_heads, llama.head_size) == (3, 2, 8)
    assert (llama.vocabulary, llama.max_positions) == (300, 1024)
    assert llama.eos_ids == {299, 256}
    assert llama.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (MistralConfig(sliding_window=4096), "sliding window"),
        (
            Qwen2Config(
                num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2
            ),
            "sliding_attention",
        ),
        (
            LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "dynamic rotary",
        ),
    ],
)
def test_unsupported_architectures_are_rejected(config, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        check_config(config)


@pytest.mark.parametrize("config", [MistralConfig(sliding_window=None), Qwen2Config()])
def test_supported_architectures_are_accepted(config):
    check_config(config)


def test_a_model_with_changed_logits_is_rejected(llama_folder, llama, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(llama_folder, attn_implementation="sdpa").eval()
    loaded = dataclasses.replace(llama, model=model)
    check_paged_attention(loaded)
    model.set_attn_implementation("sdpa")
    forward = model.forward

    def unlike(**kwargs):
        result = forward(**kwargs)
        if "paged" in kwargs:
            result.logits = result.logits * 1.01
        return result

    monkeypatch.setattr(model, "forward", unlike)
    with pytest.raises(UnsupportedModelError, match="other logits"):
        check_paged_attention(loaded)


def test_absolute_positions_are_supported(tmp_path, llama_folder, make_bench):
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2, eos_token_id=299)
    )
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama_folder / name, tmp_path / name)
    bench = make_bench(load_model(str(tmp_path), device="cpu"))
    bench.add("s", [1, 2, 3], 8)
    bench.run()
    assert bench.finish_reason("s") in ("length", "stop")


def test_a_config_without_a_language_model_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "vit", "architectures": ["ViTModel"]})
    )
    with pytest.raises(UnsupportedModelError, match="positions"):
        load_model(str(tmp_path), device="cpu")


def test_unknown_model_names_are_rejected(llama_folder):
    with pytest.raises(ValueError, match="allowed: auto, float32"):
        load_model(str(llama_folder), dtype="int8", device="cpu")
    with pytest.raises(OSError, match="nowhere"):
        load_model("/nowhere/at/all", device="cpu")


def damaged(llama_folder, folder, change):
    """Write the checkpoint with changed tensors."""
    shutil.copytree(llama_folder, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(WEIGHT), f"lacks {WEIGHT}$"),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if "mlp" in name],
            "lacks .*, .*, .* and 6 more$",
        ),
        (
            lambda tensors: tensors.update({WEIGHT: torch.zeros(5, 5)}),
            rf"another shape: {WEIGHT} \(\[5, 5\], not \[96, 64\]\)",
        ),
        (lambda tensors: tensors[WEIGHT].fill_(torch.nan), "not finite"),
    ],
)
def test_a_damaged_checkpoint_is_rejected(change, reason, llama_folder, tmp_path):
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model(damaged(llama_folder, tmp_path, change), device="cpu")


def test_a_checkpoint_without_weights_is_rejected(llama_folder, tmp_path):
    shutil.copytree(llama_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        load_model(str(tmp_path), device="cpu")


def test_a_cache_larger_than_memory_is_rejected(llama):
    with pytest.raises(ValueError, match=r"needs .* GiB; allowed: up to .* tokens"):
        llama.kv_tensors(10**12)
