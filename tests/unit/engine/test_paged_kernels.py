"""The Triton kernels agree with plain attention; without a GPU they run in Triton's interpreter.

The interpreter does not multiply bfloat16 matrices, so without a GPU float16 replaces the short
types.
"""

import importlib.util
import os
from itertools import pairwise

import numpy as np
import pytest
import torch

if importlib.util.find_spec("triton") is None:
    if os.environ.get("CI") == "true":
        raise ModuleNotFoundError("triton is missing: pip install 'fairserve[gpu]'")
    pytest.skip("triton is missing: pip install 'fairserve[gpu]'", allow_module_level=True)

from fairserve.engine.torch import attention, engine, sampler
from fairserve.engine.torch.batch import assemble
from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.decode_graphs import DecodeGraphs, graph_sizes
from fairserve.engine.torch.kernel_attention import KernelPlan
from fairserve.engine.torch.launched_step import PendingTokens
from fairserve.engine.torch.model_loader import load_model
from fairserve.engine.torch.paged_kernels import (
    TILE_ROWS,
    DecodeScratch,
    decode_attention,
    prefill_attention,
)
from fairserve.engine.torch.sequence import PENDING

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SHORT = torch.bfloat16 if ON_GPU else torch.float16
SLOW = () if ON_GPU else pytest.mark.deep
"""Reason to skip cases that only take long in Triton's interpreter."""
ODD = (6, 2, 48, torch.float32)
SHAPES = [
    ODD,
    pytest.param(8, 2, 8, torch.float32, marks=SLOW),
    pytest.param(4, 4, 64, SHORT, marks=SLOW),
]
"""Query heads, KV heads, head size, type: first three heads to one, and a size that fills no block."""


@pytest.fixture(scope="module")
def llama(llama_folder):
    """Return the model on the device of the kernels."""
    return load_model(str(llama_folder), dtype="float32", device=DEVICE.type)


def expected(query, keys, values, table, positions):
    """Return the rows of one sequence at these positions."""
    tokens = int(positions[-1]) + 1
    group = query.shape[1] // keys.shape[2]
    k, v = (
        pool[table.long()].flatten(0, 1)[:tokens].float().repeat_interleave(group, 1)
        for pool in (keys, values)
    )
    scores = torch.einsum("thd,nhd->htn", query.float(), k) * query.shape[-1] ** -0.5
    hidden = torch.arange(tokens, device=DEVICE)[None] > positions[:, None]
    weights = scores.masked_fill(hidden[None], -torch.inf).softmax(-1)
    return torch.einsum("htn,nhd->thd", weights, v)


def pools(kv_heads, head_size, dtype, width, sequences):
    torch.manual_seed(0)
    shape = (40, 16, kv_heads, head_size)
    keys, values = (torch.randn(shape, dtype=dtype, device=DEVICE) for _ in "kv")
    table = torch.randint(1, 40, (sequences, width), dtype=torch.int32, device=DEVICE)
    return keys, values, table


def close(seen, wanted):
    tolerance = 2e-5 if seen.dtype is torch.float32 else 2e-2
    return float((seen.float() - wanted).abs().max()) < tolerance


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "dtype", "splits"),
    [
        (*ODD, 3),
        (4, 4, 64, SHORT, 1),
        pytest.param(*ODD, 1, marks=SLOW),
        pytest.param(4, 4, 64, SHORT, 3, marks=SLOW),
        pytest.param(8, 2, 8, torch.float32, 1, marks=SLOW),
        pytest.param(8, 2, 8, torch.float32, 3, marks=SLOW),
    ],
)
def test_decodes_agree_with_plain_attention(heads, kv_heads, head_size, dtype, splits):
    """Contexts have one token, whole pages, or fewer blocks than there are splits."""
    lengths = torch.tensor([1, 16, 17, 100, 130], dtype=torch.int32, device=DEVICE)
    keys, values, table = pools(kv_heads, head_size, dtype, 9, len(lengths))
    query = torch.randn(len(lengths), heads, head_size, dtype=dtype, device=DEVICE)
    output = torch.full_like(query, torch.nan)
    scratch = DecodeScratch.make(len(lengths), heads, head_size, splits, DEVICE)
    decode_attention(query, keys, values, table, lengths, output, scratch, head_size**-0.5)
    for row, length in enumerate(lengths.tolist()):
        at = torch.tensor([length - 1], device=DEVICE)
        wanted = expected(query[row : row + 1], keys, values, table[row], at)
        assert close(output[row : row + 1], wanted), length


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype"), SHAPES)
def test_prefills_agree_with_plain_attention(heads, kv_heads, head_size, dtype):
    """Chunks lie at the beginning and in the middle of prompts, with several tiles or part of one."""
    chunks = [(5, 5), (TILE_ROWS + 6, TILE_ROWS + 6), (3, 90), (TILE_ROWS, 128)]
    keys, values, table = pools(kv_heads, head_size, dtype, 9, len(chunks))
    rows = sum(tokens for tokens, _ in chunks)
    # As in a model: heads first.
    query = torch.randn(heads, rows, head_size, dtype=dtype, device=DEVICE).transpose(0, 1)
    output = torch.full((rows, heads, head_size), torch.nan, dtype=dtype, device=DEVICE)
    starts = np.cumsum([0] + [tokens for tokens, _ in chunks]).tolist()
    spans = [
        [start, tokens, context] for start, (tokens, context) in zip(starts, chunks, strict=False)
    ]
    tiles = [
        [number, first]
        for number, (tokens, _) in enumerate(chunks)
        for first in range(0, tokens, TILE_ROWS)
    ]
    as_tensor = {"dtype": torch.int32, "device": DEVICE}
    prefill_attention(
        query,
        keys,
        values,
        table,
        torch.tensor(tiles, **as_tensor).T.contiguous(),
        torch.tensor(spans, **as_tensor).T.contiguous(),
        output,
        head_size**-0.5,
    )
    for number, (start, tokens, context) in enumerate(spans):
        part = slice(start, start + tokens)
        at = torch.arange(context - tokens, context, device=DEVICE)
        assert close(output[part], expected(query[part], keys, values, table[number], at)), number


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=SLOW), True])
def test_the_engine_gives_the_same_tokens(make_bench, llama, monkeypatch):
    """Mixed steps, reuse and chunks give equal tokens by kernels and by plain torch."""
    texts = []
    for planner in (attention.GatherPlan, KernelPlan.of):
        monkeypatch.setattr(engine, "planner_for", lambda device, chosen=planner: chosen)
        bench = make_bench(token_budget=24)
        prompt = np.random.default_rng(3).integers(0, 256, 40).tolist()
        for index, tokens in enumerate((prompt, [*prompt[:32], 7], prompt[5:25])):
            bench.add(f"s{index}", tokens, 3, ignore_eos=True)
            bench.engine.step()
        bench.run()
        texts.append([bench.text(f"s{index}") for index in range(3)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("overlap", [False])
def test_static_buffers_give_the_same_logits(make_bench, llama):
    """Batches that fill a size and that do not run one after the other in the same buffers."""
    bench = make_bench()
    kv = bench.engine._kv
    graphs = DecodeGraphs(llama.logits, kv, max_batch=4, max_pages=16)
    for index in range(3):
        tokens = np.random.default_rng(index).integers(0, 256, 10 + 9 * index).tolist()
        bench.add(f"s{index}", tokens, 20, ignore_eos=True)
        bench.engine.step()
        bench.engine.step()
        decodes = [Chunk(each, 1) for each in bench.engine.running]
        for chunk in decodes:
            assert chunk.is_decode
            bench.engine.cache.grow(chunk.sequence, len(chunk.sequence.tokens))
        with torch.inference_mode():
            batch = assemble(decodes, kv, attention.GatherPlan)
            ids, rows = batch.input_ids, batch.logit_rows
            wanted = llama.logits(ids, batch.positions, rows, batch.state)
            seen = graphs.logits(batch.chunks)
            assert seen.shape == wanted.shape
            assert float((seen - wanted).abs().max()) < 1e-4
            # The same, with inputs of every other sequence known only to the device.
            pending = hidden(batch.chunks[::2])
            late = assemble(decodes, kv, attention.GatherPlan, pending)
            assert torch.equal(late.input_ids, ids)
            assert torch.equal(graphs.logits(batch.chunks, pending), seen)
            for chunk in batch.chunks[::2]:
                row = pending.rows[chunk.sequence.sequence_id]
                chunk.sequence.tokens[-1] = int(pending.tokens[row])


def hidden(decodes):
    """Remove the last token from sequences, and return where it is found instead."""
    sequences = [chunk.sequence for chunk in reversed(decodes)]
    tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=DEVICE)
    for sequence in sequences:
        sequence.tokens[-1] = PENDING
    rows = {sequence.sequence_id: row for row, sequence in enumerate(sequences)}
    return PendingTokens(tokens, rows)


def test_padding_is_computed_as_token_0():
    pending = PendingTokens(torch.tensor([sampler.INVALID, 7]), {})
    ids = pending.resolve(torch.tensor([4, 5, 6]), torch.tensor([0, -1, 1]))
    assert ids.tolist() == [0, 5, 7]


def test_graph_sizes_cover_all_batches():
    assert graph_sizes(1) == [1]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    for most in range(1, 300):
        sizes = graph_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert all(b <= 2 * a for a, b in pairwise(sizes))
