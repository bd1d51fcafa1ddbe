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
    # Wide weights: logits differ so much that rounding never decides between two tokens.
    "initializer_range": 0.3,
    "eos_token_id": 299,
    "bos_token_id": None,
}


FAMILIES = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    # Heads that are wider than hidden size over heads; queries and keys are normalised.
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": True, "head_dim": 16}),
    "mistral": ("MistralConfig", {"tie_word_embeddings": False, "sliding_window": None}),
}


def write_checkpoint(folder, family):
    import torch
    import transformers

    torch.manual_seed(7)
    config, options = FAMILIES[family]
    config = getattr(transformers, config)(**SHAPE, **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ensure_builtin_model() / name, folder / name)
    return folder
