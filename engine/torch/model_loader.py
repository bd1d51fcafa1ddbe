"""Loads a causal language model for the paged engine, or raises the reason why it cannot be served.

Requirements: decoder only, full causal attention in every layer, rotary positions that do not
depend on the longest sequence in the batch, and attention through transformers' attention
interface. Because a config may not show all of this, the loaded model is also run once both ways,
and must give the same logits with pages as without.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence as Names
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from fairserve.engine.allocator import keep_freed_memory
from fairserve.engine.torch import attention
from fairserve.engine.torch.batch import PagedState, assemble
from fairserve.engine.torch.builtin_model import (
    DEMO_MODEL_NAME,
    builtin_name,
    ensure_builtin_model,
)
from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kv_tensors import KvTensors
from fairserve.engine.torch.model_hub import check_model
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.packed_linear import pack_linears
from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import Sequence, SequenceRequest

_BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_SMALL_MODEL_PARAMETERS = 50_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class UnsupportedModelError(ValueError):
    """This engine cannot serve the model; the message gives the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that the engine can run, with its sizes and tokenizer."""

    name: str
    model: Any
    """Transformers model in eval mode, set to paged attention."""
    tokenizer: Any
    dtype: torch.dtype
    device: torch.device
    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int
    """Upper bound of token ids, exclusive."""
    max_positions: int
    eos_ids: frozenset[int]
    pads_rows: bool = False
    """True if passes must be padded; see ``packed_linear``."""
    is_scripted: bool = False
    """True for the demo model, whose answers follow a script."""

    def kv_tensors(self, usable_pages: int) -> KvTensors:
        """Return a zeroed KV cache for this model. Raises ValueError if there is no memory for it."""
        tokens = usable_pages * PAGE_TOKENS
        needed, there = tokens * self.kv_bytes_per_token, self._memory_bytes()
        if needed > there:
            raise ValueError(
                f"a KV cache of {tokens:,} tokens needs {needed / 2**30:,.1f} GiB; allowed: up to "
                f"{there / 2**30:,.1f} GiB, which is {there // self.kv_bytes_per_token:,} tokens"
            )
        return KvTensors(
            self.layers, self.kv_heads, self.head_size, usable_pages, self.dtype, self.device
        )

    def _memory_bytes(self) -> int:
        """Return the free memory of a GPU, else all memory of the machine."""
        if self.device.type == "cuda":
            return self.free_device_bytes()
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def logits(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        logit_rows: torch.Tensor,
        state: PagedState,
    ) -> torch.Tensor:
        """Run a forward pass over rows [1, T]; return the logits of ``logit_rows``, [S, vocabulary].

        Writes the keys and values of all rows to their pages.
        """
        result: torch.Tensor = self.model(
            input_ids=input_ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=logit_rows,
            paged=state,
        ).logits[0]
        return result

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the KV memory of one token in bytes."""
        return KvTensors.bytes_per_token(self.layers, self.kv_heads, self.head_size, self.dtype)

    def free_device_bytes(self) -> int:
        """Return the free bytes of the model's GPU."""
        return torch.cuda.mem_get_info(self.device)[0]


def load_model(source: str, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a checkpoint folder, a hub id, or a built-in model by its name.

    ``device`` auto: cuda if available, else cpu. ``dtype`` auto: bfloat16 on cuda, float32 on cpu.
    On a CPU models below 50M parameters are set to one thread (more would only wait for each
    other), and the allocator keeps freed memory; both apply to the whole process. Files in the
    hub's cache are used without a check for a newer version. Raises UnsupportedModelError, and
    OSError for a missing checkpoint.
    """
    check_model(source)
    where = choose_device(device)
    kind = choose_dtype(dtype, where)
    builtin = builtin_name(source)
    path = source if builtin is None else str(ensure_builtin_model(builtin))
    try:
        model, tokenizer = _read_checkpoint(source, path, kind, local=True)
    except OSError:
        if os.path.isdir(path):
            raise
        model, tokenizer = _read_checkpoint(source, path, kind, local=False)
    model.to(where)
    adopted = adopt_model(builtin or _served_name(source), model, tokenizer, pack=True)
    return replace(adopted, is_scripted=builtin == DEMO_MODEL_NAME)


def _read_checkpoint(source: str, path: str, kind: torch.dtype, *, local: bool) -> tuple[Any, Any]:
    """Return model and tokenizer. ``local``: from a folder or the hub's cache, without the hub."""
    check_config(AutoConfig.from_pretrained(path, local_files_only=local))
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=kind,
            attn_implementation="sdpa",
            output_loading_info=True,
            # Not ignored, but reported with their names below.
            ignore_mismatched_sizes=True,
            local_files_only=local,
        )
    except ValueError as error:
        raise UnsupportedModelError(f"{source}: {error}") from error
    model, loading = found
    _check_weights(source, loading)
    return model, AutoTokenizer.from_pretrained(path, local_files_only=local)


def adopt_model(name: str, model: Any, tokenizer: Any, *, pack: bool = False) -> LoadedModel:
    """Prepare a transformers model in memory, on its device, for paged attention.

    The model itself is changed: evaluation mode, no gradients, our attention, and with ``pack`` on
    a CPU packed linear layers in place of its own. The number of threads and the allocator are set
    as by :func:`load_model`. Raises UnsupportedModelError.
    """
    check_config(model.config)
    attention.register()
    if not model._supports_attention_backend:
        raise UnsupportedModelError(
            f"{name}: {type(model).__name__} does not go through the attention interface"
        )
    model.eval().requires_grad_(False)
    if model.device.type == "cpu" and model.num_parameters() < _SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)
    packed = pack_linears(model) if pack else 0
    if model.device.type == "cpu":
        keep_freed_memory()
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    loaded = LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        dtype=model.dtype,
        device=model.device,
        layers=text.num_hidden_layers,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocabulary=model.get_input_embeddings().num_embeddings,
        max_positions=text.max_position_embeddings,
        eos_ids=_eos_ids(model, tokenizer),
        pads_rows=packed > 0,
    )
    check_paged_attention(loaded)
    return loaded


def check_config(config: Any) -> None:
    """Raise UnsupportedModelError for an architecture that the paged engine cannot serve."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder model; only decoders are served")
    text = config.get_text_config()
    layer_types = getattr(text, "layer_types", None)
    if layer_types:
        other = sorted(set(layer_types) - {"full_attention"})
        if other:
            raise UnsupportedModelError(
                f"{name} has layers of {', '.join(other)}; only full attention is served"
            )
    elif getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        raise UnsupportedModelError(
            f"{name} attends to a sliding window; only full attention is served"
        )
    if not getattr(text, "max_position_embeddings", None):
        raise UnsupportedModelError(f"{name} has no number of positions in its config")
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        raise UnsupportedModelError(
            f"{name} has {rope['rope_type']} rotary positions, which depend on the longest "
            "sequence of a batch: batch-mates would change each other's output"
        )


@torch.inference_mode()
def check_paged_attention(loaded: LoadedModel) -> None:
    """Set a model to paged attention, and check on 40 tokens that its logits do not change.

    The paged run consists of two chunks and one decode, the reference of one forward pass without
    pages. Raises UnsupportedModelError if the model does not use our attention or the logits
    differ.
    """
    count = 40
    tokens = torch.arange(count, device=loaded.device) % loaded.vocabulary
    expected = loaded.model(input_ids=tokens[None], use_cache=False).logits[0, -1].float()
    if not bool(expected.isfinite().all()):
        raise UnsupportedModelError(f"{loaded.name} gives logits that are not finite")
    loaded.model.set_attn_implementation(attention.ATTENTION_NAME)
    params = SamplingParams(max_tokens=1)
    request = SequenceRequest("check", "", tokens.cpu().numpy(), params)
    sequence = Sequence(request, OutputText(_NoText(), ()), seed=0)
    cache = PagedCache(usable_pages=sequence.total_pages)
    kv = loaded.kv_tensors(cache.pool.usable_pages)
    planner = attention.planner_for(loaded.device)
    cache.try_admit(sequence, sequence.total_pages)
    logits = expected
    for chunk in (20, 19, 1):
        cache.grow(sequence, sequence.computed_tokens + chunk)
        batch = assemble([Chunk(sequence, chunk)], kv, planner, pad_rows=loaded.pads_rows)
        try:
            logits = loaded.logits(batch.input_ids, batch.positions, batch.logit_rows, batch.state)
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise UnsupportedModelError(
                f"{loaded.name} does not run with paged attention: {error}"
            ) from error
        logits = logits[-1:].float()
        sequence.computed_tokens += chunk
    tolerance = 1e-3 if loaded.dtype is torch.float32 else 0.1
    scale = max(1.0, float(expected.abs().max()))
    # Empty: the model ignored the requested rows of logits.
    if logits.numel() == 0 or float((logits[0] - expected).abs().max()) > tolerance * scale:
        raise UnsupportedModelError(
            f"{loaded.name} gives other logits with paged attention than without"
        )


def _check_weights(source: str, loading: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError unless the checkpoint has every weight in the expected shape."""
    missing, other = sorted(loading["missing_keys"]), sorted(loading["mismatched_keys"])
    if missing:
        raise UnsupportedModelError(f"{source} lacks {_some(missing)}")
    if other:
        shapes = [f"{name} ({list(is_)}, not {list(must)})" for name, is_, must in other]
        raise UnsupportedModelError(f"{source} has weights of another shape: {_some(shapes)}")


def _some(names: Names[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


class _NoText:
    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def choose_device(name: str) -> torch.device:
    """Return the named device; auto: cuda if available, else cpu. Raises ValueError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no GPU; allowed: cpu, auto")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named number type; auto: bfloat16 (or float16) on cuda, float32 on cpu."""
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; allowed: auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _served_name(source: str) -> str:
    """Return the name to serve: a hub id unchanged, or the last part of a local folder."""
    return Path(source).resolve().name if os.path.isdir(source) else source


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    for value in (
        getattr(model.generation_config, "eos_token_id", None),
        model.config.get_text_config().eos_token_id,
        tokenizer.eos_token_id,
    ):
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(value)
    return frozenset(ids)
