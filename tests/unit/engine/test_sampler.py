import numpy as np
import pytest
import torch

from fairserve.engine.torch import sampler
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import Sequence, SequenceRequest


def make_sequence(seed=0, **params):
    request = SequenceRequest(
        "s", "c", np.array([1], dtype=np.uint32), SamplingParams(max_tokens=1, **params)
    )
    return Sequence(request, OutputText(None, ()), seed)


def draws(count, logits, **params):
    sequence = make_sequence(**params)
    rows = torch.tensor([logits] * 1)
    return [sampler.sample(rows, [sequence])[0] for _ in range(count)]


def test_greedy_takes_the_largest():
    assert draws(5, [0.0, 3.0, 1.0], temperature=0) == [1] * 5


def test_frequencies_follow_the_distribution():
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    got = np.bincount(draws(4000, np.log(wanted).tolist()), minlength=4) / 4000
    assert np.abs(got - wanted).max() < 0.03
    flat = np.bincount(draws(4000, (2 * np.log(wanted)).tolist(), temperature=2), minlength=4)
    assert np.abs(flat / 4000 - wanted).max() < 0.03


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log([0.05, 0.5, 0.15, 0.3]).tolist()
    assert set(draws(300, logits, top_p=0.5)) == {1}
    assert set(draws(300, logits, top_p=0.51)) == {1, 3}
    assert set(draws(300, logits, top_p=0.9)) == {1, 2, 3}
    assert set(draws(600, logits, top_p=0.999)) == {0, 1, 2, 3}


@pytest.mark.parametrize("params", [{"temperature": 1e-300}, {"top_p": 1e-12}])
def test_extremes_are_greedy(params):
    assert draws(20, [1e4, 2e4, -1e4], **params) == [1] * 20


def test_a_seed_fixes_the_output_whatever_the_batch():
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    for params in ({}, {"top_p": 0.8}, {"temperature": 0.6, "top_p": 0.95}):
        alone = make_sequence(seed=5, **params)
        expected = [sampler.sample(row[None], [alone])[0] for row in logits]
        among = make_sequence(seed=5, **params)
        others = [make_sequence(seed=6, temperature=0), make_sequence(seed=7, top_p=0.5)]
        others.append(make_sequence(seed=8))
        got = []
        for step, row in enumerate(logits):
            batch = others[: step % 4]
            rows = torch.cat([torch.randn(len(batch), 300), row[None]])
            got.append(sampler.sample(rows, [*batch, among])[-1])
        assert got == expected
        other = make_sequence(seed=9, **params)
        assert [sampler.sample(row[None], [other])[0] for row in logits] != expected


def test_a_row_that_is_not_finite_is_reported_and_hurts_no_other():
    rows = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [1.0, 0.0], [0.0, torch.inf]])
    sequences = [make_sequence(temperature=0) for _ in range(4)]
    assert sampler.sample(rows, sequences) == [1, sampler.INVALID, 0, sampler.INVALID]


def test_a_token_of_weight_zero_is_never_drawn():
    class Almost:
        def random(self):
            return np.nextafter(1.0, 0.0)

    for top_p in (1.0, 0.9):
        sequence = make_sequence(top_p=top_p)
        sequence.random = Almost()
        assert sampler.sample(torch.tensor([[0.0, 0.0, -1e9, -1e9]]), [sequence]) != [3]
        assert sampler.sample(torch.tensor([[0.0, 0.0, -1e9, -1e9]]), [sequence]) == [1]


@pytest.mark.parametrize(
    "params",
    [{"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"stop": ("",)}],
)
def test_options_are_checked(params):
    with pytest.raises(ValueError, match="must"):
        SamplingParams(**{"max_tokens": 1, **params})
