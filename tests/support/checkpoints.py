"""Small seeded checkpoints, written as safetensors with the built-in model's tokenizer."""

import shutil

from fairserve.engine.torch.builtin_model import ensure_builtin_model

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    # Wide weights: logits far apart, so that no rounding decides between two tokens.
    "initializer_range": 0.3,
    "eos_token_id": 299,
    "bos_token_id": None,
}


def write_checkpoint(folder, family):
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    torch.manual_seed(7)
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ensure_builtin_model() / name, folder / name)
    return folder
