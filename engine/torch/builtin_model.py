"""The models that need no download: ``fairserve-tiny-random`` and ``fairserve-demo``.

Both are a Llama of one million seeded random weights over bytes. Its text is noise; everything around
it (tokens, pages, prefix reuse, scheduling, streaming) is real, as demos and tests need. It is
written to a cache folder on first use, by numpy and tokenizers alone, so a gateway that uses the
tokenizer does not import torch.

Random logits would end an answer after about 260 tokens and print control bytes. So dimension 0 of
the residual stream is a constant that no layer changes (its rows in ``o_proj`` and ``down_proj``
are zero), and column 0 of ``lm_head`` turns it into a bias per token: higher for letters and the
space, neutral for other printable ASCII, and for all other bytes and the special tokens (including
the end token) low enough for probabilities below 1e-9. Answers therefore run to their token limit.

The two differ in the chat template: that of the demo model has tools and calls of them. A worker forces
the tokens of its answers (:mod:`fairserve.engine.torch.scripted`), which are computed as any others.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairserve.engine.torch.detokenizer import byte_characters

BUILTIN_MODEL_NAME = "fairserve-tiny-random"
"""Name of the model of random answers, accepted in place of a model folder: that of a worker without
``--model``."""
DEMO_MODEL_NAME = "fairserve-demo"
"""Name of the model of scripted answers, accepted in place of a model folder."""
_SHORT_NAMES = {"demo": DEMO_MODEL_NAME}
"""Short names for ``--model``."""

_REVISION = 1
"""Part of the folder's name; increase it whenever the written files change."""
_SEED = 20250
_SPECIAL_TOKENS = [
    "<|end|>",
    "<|system|>",
    "<|developer|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
]
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'developer', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' ~ message.role) }}"
    "{% endif %}"
    "{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_DEMO_CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>Tools: ' ~ (tools | tojson) ~ '<|end|>' }}{% endif %}"
    + _CHAT_TEMPLATE.replace(
        "message.content ~ '<|end|>' }}",
        "message.content }}"
        "{% for call in message.tool_calls or [] %}"
        "{{ '<|tool|>' ~ call.function.name ~ (call.function.arguments | tojson) }}"
        "{% endfor %}"
        "{{ '<|end|>' }}",
    )
)
_CHAT_TEMPLATES = {BUILTIN_MODEL_NAME: _CHAT_TEMPLATE, DEMO_MODEL_NAME: _DEMO_CHAT_TEMPLATE}
_VOCABULARY = 256 + len(_SPECIAL_TOKENS)
_END_ID = 256
CALL_ID = 256 + _SPECIAL_TOKENS.index("<|tool|>")
"""Token that begins a call of a tool in an answer of the demo model; its name and arguments follow."""
_HIDDEN = 128
_LAYERS = 4
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 32
_INTERMEDIATE = 512
_MAX_POSITIONS = 16384
_CONSTANT = 8.0
"""Value of dimension 0 of every embedding."""
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

Array = npt.NDArray[np.float32]


def builtin_name(source: str) -> str | None:
    """Return the name of the built-in model that a value of ``--model`` names; None: another model."""
    name = _SHORT_NAMES.get(source, source)
    return name if name in _CHAT_TEMPLATES else None


def ensure_builtin_model(name: str = BUILTIN_MODEL_NAME) -> Path:
    """Return the folder of a built-in model, which is written if it does not exist.

    The folder is in ``$XDG_CACHE_HOME/fairserve/models`` (default ``~/.cache``) and appears by one
    rename, so any number of processes can call this at once. Raises OSError if the cache cannot be
    written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    models = cache / "fairserve" / "models"
    folder = models / f"{name}-r{_REVISION}"
    if _complete(folder):
        return folder
    models.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=models))
    try:
        _write(draft, _CHAT_TEMPLATES[name])
        draft.chmod(0o755)
        if folder.exists() and not _complete(folder):
            # A part of it was deleted. Move the rest away; a rename cannot replace it.
            folder.rename(draft.with_name(draft.name + "-broken"))
        try:
            draft.rename(folder)
        except OSError:
            if not _complete(folder):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(draft.with_name(draft.name + "-broken"), ignore_errors=True)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def _write(folder: Path, chat_template: str) -> None:
    from safetensors.numpy import save_file

    _write_tokenizer(folder, chat_template)
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": None,
            "eos_token_id": _END_ID,
            "head_dim": _HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "max_position_embeddings": _MAX_POSITIONS,
            "mlp_bias": False,
            "num_attention_heads": _HEADS,
            "num_hidden_layers": _LAYERS,
            "num_key_value_heads": _KV_HEADS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "vocab_size": _VOCABULARY,
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": _END_ID})
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    for name in _FILES:
        with (folder / name).open("rb") as written:
            os.fsync(written.fileno())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, chat_template: str) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": _SPECIAL_TOKENS[0],
            "additional_special_tokens": _SPECIAL_TOKENS[1:],
            "chat_template": chat_template,
            "clean_up_tokenization_spaces": False,
            "model_max_length": _MAX_POSITIONS,
        },
    )


def _token_bias() -> Array:
    """Return the bias of each token's logit, shape [vocabulary]."""
    bias = np.full(_VOCABULARY, -24.0, dtype=np.float32)
    bias[0x20:0x7F] = 0.0
    bias[ord("a") : ord("z") + 1] = 2.0
    bias[[ord(letter) for letter in "aeinorst"]] = 3.0
    bias[ord(" ")] = 4.5
    return bias


def _weights() -> dict[str, Array]:
    random = np.random.Generator(np.random.PCG64(_SEED))

    def normal(rows: int, columns: int, scale: float) -> Array:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    embedding = normal(_VOCABULARY, _HIDDEN, 1.0)
    embedding[:, 0] = _CONSTANT
    tensors: dict[str, Array] = {"model.embed_tokens.weight": embedding}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        output = normal(_HIDDEN, _HEADS * _HEAD_DIM, 0.25)
        down = normal(_HIDDEN, _INTERMEDIATE, 0.12)
        output[0] = 0.0
        down[0] = 0.0
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": normal(_HEADS * _HEAD_DIM, _HIDDEN, 0.12),
            f"{prefix}.self_attn.k_proj.weight": normal(_KV_HEADS * _HEAD_DIM, _HIDDEN, 0.12),
            f"{prefix}.self_attn.v_proj.weight": normal(_KV_HEADS * _HEAD_DIM, _HIDDEN, 0.12),
            f"{prefix}.self_attn.o_proj.weight": output,
            f"{prefix}.mlp.gate_proj.weight": normal(_INTERMEDIATE, _HIDDEN, 0.12),
            f"{prefix}.mlp.up_proj.weight": normal(_INTERMEDIATE, _HIDDEN, 0.12),
            f"{prefix}.mlp.down_proj.weight": down,
            f"{prefix}.input_layernorm.weight": np.ones(_HIDDEN, dtype=np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(_HIDDEN, dtype=np.float32),
        }
    # The residual stream ends with a root mean square near 9.7; the final norm divides by it.
    final_norm = np.ones(_HIDDEN, dtype=np.float32)
    final_norm[0] = 9.7 / _CONSTANT
    head = normal(_VOCABULARY, _HIDDEN, 0.12)
    head[:, 0] = _token_bias()
    return tensors | {"model.norm.weight": final_norm, "lm_head.weight": head}
