"""Packed linear layers multiply like plain ones, and replace them."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fairserve.engine.torch import packed_linear
from fairserve.engine.torch.packed_linear import (
    PackedLinear,
    pack_linears,
    packed_types,
    padded_rows,
)

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", packed_types())
@torch.inference_mode()
def test_a_packed_layer_multiplies_like_the_plain_one(bias, dtype):
    torch.manual_seed(0)
    tolerance = TOLERANCES[dtype]
    plain = nn.Linear(384, 500, bias=bias, dtype=dtype)
    packed = PackedLinear(plain)
    for shape in ((1, 0), (1, 1), (1, 7), (1, 32), (3, 100), (1, 513)):
        rows = torch.randn(*shape, 384, dtype=dtype)
        seen, wanted = packed(rows), plain(rows)
        assert seen.shape == wanted.shape
        assert seen.dtype == dtype
        torch.testing.assert_close(seen, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", packed_types())
def test_a_packed_layer_keeps_shape_and_type_of_its_weight(dtype):
    packed = PackedLinear(nn.Linear(384, 500, dtype=dtype))
    assert (packed.in_features, packed.out_features) == (384, 500)
    assert packed.weight.shape == (500, 384)
    assert packed.weight.dtype is dtype


def test_unsupported_types_are_not_packed(monkeypatch):
    """A bfloat16 model loads on processors without AVX-512, where oneDNN lacks the type."""
    monkeypatch.setattr(packed_linear, "packed_types", lambda: (torch.float32,))
    model = nn.Sequential(nn.Linear(512, 512, dtype=torch.bfloat16), nn.Linear(512, 512))
    assert pack_linears(model) == 1
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_model_of_any_type_runs_on_this_processor(dtype):
    model = nn.Sequential(nn.Linear(512, 512, dtype=dtype))
    rows = torch.randn(3, 512, dtype=dtype)
    wanted = model(rows)
    pack_linears(model)
    torch.testing.assert_close(model(rows), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.inner = nn.ModuleList([nn.Linear(256, 600), nn.Linear(16, 16)])
        self.head = nn.Linear(256, 1000, bias=False)
        self.head.weight = self.embedding.weight


def test_only_large_unshared_layers_are_packed():
    model = Tied()
    head = weakref.ref(model.head.weight)
    large = weakref.ref(model.inner[0].weight)
    assert pack_linears(model) == 2
    gc.collect()
    assert isinstance(model.inner[0], PackedLinear)
    assert type(model.inner[1]) is nn.Linear
    assert large() is None, "its memory is free"
    assert model.embedding.weight is head()
    rows = model.embedding(torch.tensor([[3, 5]]))
    with torch.inference_mode():
        wanted = rows @ model.embedding.weight.T
        torch.testing.assert_close(model.head(rows), wanted, rtol=1e-4, atol=1e-3)


def test_layers_of_other_kinds_are_not_packed():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(512, 512), nn.Linear(512, 512, dtype=torch.float64))
    assert pack_linears(model) == 0


def test_nothing_is_packed_without_onednn(monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = nn.Sequential(nn.Linear(512, 512))
    assert packed_linear.pack_linears(model) == 0
    assert type(model[0]) is nn.Linear
    assert "no oneDNN" in caplog.text


def test_row_counts_are_padded_to_few_sizes():
    assert [padded_rows(rows) for rows in (0, 1, 31, 32, 33, 40, 41)] == [0, 1, 31, 32, 40, 40, 48]
    assert len({padded_rows(rows) for rows in range(1, 513)}) == 32 + 60


def test_padding_affects_no_output(make_bench, llama, monkeypatch):
    """Padding rows of passes of 33 rows and more change no token and no page."""
    passes = []
    forward = llama.model.forward

    def noted(**inputs):
        passes.append(inputs["input_ids"].shape[1])
        return forward(**inputs)

    monkeypatch.setattr(llama.model, "forward", noted)
    texts = []
    for pads in (False, True):
        passes.clear()
        bench = make_bench(replace(llama, pads_rows=pads))
        for index, length in enumerate((37, 90, 5)):
            tokens = np.random.default_rng(index).integers(0, 256, length).tolist()
            bench.add(f"s{index}", tokens, 6, ignore_eos=True)
            bench.engine.step()
        bench.run()
        keys = bench.engine._kv.keys[0]
        assert not keys[0].any(), "the pad page stays clear"
        texts.append([bench.text(f"s{index}") for index in range(3)])
        assert any(rows > 32 and rows % 8 for rows in passes) != pads
    assert texts[0] == texts[1]
