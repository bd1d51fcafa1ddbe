"""Random models have their named sizes, are reproducible, and share weights between twins."""

import pytest
import torch

from fairserve.engine.torch.bench import device
from fairserve.engine.torch.bench.shapes import SHAPES, build, parameter_counts, twin
from fairserve.engine.torch.detokenizer import detokenizer_factory


@pytest.fixture(scope="module")
def small():
    with device.threads_restored():
        yield build("5m", "float32", "cpu")


def counted(name):
    """Return the number of parameters, computed by hand, without those of norms."""
    shape = SHAPES[name]
    queries = shape.heads * shape.head_size
    keys = shape.kv_heads * shape.head_size
    layer = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return shape.layers * layer + embeddings


@pytest.mark.parametrize(
    ("name", "millions"), [("5m", 5), ("100m", 99.5), ("0.6b", 596), ("8b", 8030)]
)
def test_shapes_have_the_sizes_in_their_names(name, millions):
    assert counted(name) / 1e6 == pytest.approx(millions, rel=0.02)


def test_the_model_has_the_parameters_of_its_shape(small):
    everything, in_layers, of_output = parameter_counts(small)
    shape = SHAPES["5m"]
    assert everything == pytest.approx(counted("5m"), rel=0.001)
    assert of_output == shape.vocabulary * shape.hidden
    assert in_layers == everything - 2 * of_output
    assert (small.layers, small.kv_heads, small.head_size) == (4, 4, 32)
    assert small.vocabulary == 4096
    assert not small.eos_ids


def test_weights_are_reproducible_and_global_randomness_unchanged(small):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again = build("5m", "float32", "cpu")
    assert torch.equal(before, torch.get_rng_state())
    for one, other in zip(small.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_twin_shares_weights_but_not_its_attention(small):
    other = twin(small)
    pairs = zip(small.model.parameters(), other.parameters(), strict=True)
    assert all(one is two for one, two in pairs)
    assert other.config._attn_implementation == "sdpa"
    assert small.model.config._attn_implementation == "fairserve_paged"


def test_every_token_has_a_distinct_text(small):
    tokenizer = small.tokenizer
    assert len({tokenizer.convert_ids_to_tokens(token) for token in range(4096)}) == 4096
    detokenizer = detokenizer_factory(tokenizer)()
    text = "".join(detokenizer.push(token) for token in (ord("h"), ord("i"), 300, 4095))
    assert text.startswith("hi")


def test_unknown_shapes_and_missing_devices_are_rejected():
    with pytest.raises(KeyError):
        build("70b")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            build("5m", device="cuda")


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with device.threads_restored():
        assert device.set_threads(before + 1) == before + 1
        assert device.set_threads(None) == before + 1
    assert torch.get_num_threads() == before
