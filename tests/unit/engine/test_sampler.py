"""The sampler agrees with a plain numpy version, and sequences in a batch are independent."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sequences import PROMPT, AnyToken, adjusted, make_sequence
from transformers import RepetitionPenaltyLogitsProcessor

from fairserve.engine.torch import sampler
from fairserve.engine.torch.sampling_params import SamplingParams

END = 2


def tokens_of(rows, sequences):
    """Return the sampled tokens; the sampler gets a copy, as it may change the logits."""
    return [each.token_id for each in sampler.sample(rows.clone(), sequences, {END}).read()]


def draws(count, logits, **params):
    """Return ``count`` tokens of one sequence, which draws its random numbers row by row."""
    return tokens_of(torch.tensor([logits] * count), [make_sequence(**params)] * count)


def distribution(logits, params, output):
    """Return the distribution of the next token; it is all on one token if the choice is greedy."""
    logits = np.array(logits, dtype=np.float64)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in {*PROMPT, *output}:
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(output).items():
        logits[token] -= params.presence_penalty + count * params.frequency_penalty
    if len(output) < params.min_tokens:
        logits[[END, *params.stop_token_ids]] = -np.inf
    if params.temperature == 0:
        return (np.arange(len(logits)) == logits.argmax()).astype(float)
    weights = np.exp((logits - logits.max()) / params.temperature)
    weights[weights < params.min_p * weights.max()] = 0
    for keep in (params.top_k if params.top_k > 0 else len(weights), None):
        ordered = -np.sort(-weights)
        if keep is None:
            before = ordered.cumsum() - ordered
            keep = (before < params.top_p * weights.sum() * (1 - 1e-6)).sum()
        weights[weights < ordered[min(keep, len(ordered)) - 1]] = 0
    return weights / weights.sum()


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9]),
        "top_k": st.sampled_from([-1, 0, 2, 3, 40, 1500]),
        "top_p": st.sampled_from([0.05, 0.37, 0.91, 1.0]),
        "min_p": st.sampled_from([0.0, 0.013, 0.31]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.5]),
        "presence_penalty": st.sampled_from([0.0, 0.5, -1.25, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -2.0, 1.5]),
        "logit_bias": st.dictionaries(
            st.integers(0, 9), st.sampled_from([-100.0, 0.75, 5.0]), max_size=3
        ),
        "min_tokens": st.sampled_from([0, 3, 50]),
        "stop_token_ids": st.sampled_from([frozenset(), frozenset([4])]),
        "logprobs": st.sampled_from([None, 0, 3]),
    },
)
ROW = st.tuples(
    st.integers(0, 2**32), OPTIONS, st.lists(st.integers(0, 9), max_size=6), st.integers(0, 99)
)


@given(st.lists(ROW, min_size=1, max_size=6), st.sampled_from([10, 256, 700]))
def test_the_sampler_agrees_with_the_plain_version(rows, vocabulary):
    logits, sequences = [], []
    for data, options, output, seed in rows:
        # Logits are multiples of a quarter: ties are frequent, and no rounding affects a cut.
        row = np.random.default_rng(data).integers(-20, 12, vocabulary) / 4
        logits.append(row)
        sequences.append(make_sequence(seed, output, **options))
    chosen = tokens_of(torch.tensor(np.array(logits), dtype=torch.float32), sequences)
    for (_, _, output, seed), row, sequence, token in zip(
        rows, logits, sequences, chosen, strict=True
    ):
        weights = distribution(row, sequence.params, output)
        assert weights[token] > 0
        number = np.random.Generator(np.random.PCG64(seed)).random()
        ends = weights.cumsum()
        if not sequence.params.is_greedy:
            assert ends[token] - weights[token] - 1e-5 <= number <= ends[token] + 1e-5


def test_greedy_chooses_the_largest_logit():
    assert draws(5, [0.0, 3.0, 1.0], temperature=0) == [1] * 5


def test_frequencies_follow_the_distribution():
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    got = np.bincount(draws(4000, np.log(wanted).tolist()), minlength=4) / 4000
    assert np.abs(got - wanted).max() < 0.03
    flat = np.bincount(draws(4000, (2 * np.log(wanted)).tolist(), temperature=2), minlength=4)
    assert np.abs(flat / 4000 - wanted).max() < 0.03


def test_cuts_keep_the_specified_tokens():
    logits = np.log([0.05, 0.5, 0.15, 0.3]).tolist()
    assert set(draws(300, logits, top_p=0.5)) == {1}
    assert set(draws(300, logits, top_p=0.51)) == {1, 3}
    assert set(draws(300, logits, top_p=0.9)) == {1, 2, 3}
    assert set(draws(600, logits, top_p=0.999)) == {0, 1, 2, 3}
    assert set(draws(300, logits, top_k=2)) == {1, 3}
    assert set(draws(300, logits, top_k=-1)) == {0, 1, 2, 3}
    assert set(draws(300, logits, min_p=0.29)) == {1, 2, 3}
    assert set(draws(300, logits, min_p=0.59)) == {1, 3}
    # top_p applies to the tokens left by top_k: 0.5 of 0.8 is above 0.6.
    assert set(draws(300, logits, top_k=2, top_p=0.6)) == {1}


@pytest.mark.parametrize(
    "params", [{"temperature": 1e-300}, {"top_p": 1e-12}, {"top_k": 1}, {"min_p": 1}]
)
def test_extreme_options_are_greedy(params):
    assert draws(20, [1e4, 2e4, -1e4], **params) == [1] * 20


@given(st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 2.0]))
def test_top_k_of_one_is_greedy_even_among_equals(data, temperature):
    logits = np.random.default_rng(data).integers(0, 4, 50).astype(np.float32)
    greedy = draws(1, logits.tolist(), temperature=0)
    assert draws(3, logits.tolist(), temperature=temperature, top_k=1) == greedy * 3


def test_the_repetition_penalty_is_that_of_transformers():
    processor = RepetitionPenaltyLogitsProcessor(1.7)
    rows = torch.tensor(np.random.default_rng(0).normal(size=(3, 40)), dtype=torch.float32)
    sequences = [
        make_sequence(output=output, repetition_penalty=1.7) for output in ([], [3, 7, 7], [39, 0])
    ]

    def expected():
        pairs = zip(sequences, rows.clone(), strict=True)
        return torch.cat([processor(torch.tensor([each.tokens]), row[None]) for each, row in pairs])

    for more in ([], [5, 5], [3]):
        sequences[0].tokens += more
        assert torch.equal(adjusted(rows, sequences, {END}), expected())
    assert make_sequence(repetition_penalty=1.0).adjustments is None


def test_only_allowed_tokens_are_left():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(3, 40)), dtype=torch.float32)
    allowed = ((5, 9), (), (0,))
    sequences = [
        make_sequence(allowed_token_ids=ids, logit_bias={9: 1.0, 7: 100.0}) for ids in allowed
    ]
    found = adjusted(rows, sequences, {END})
    for row, ids in enumerate(allowed):
        expected = rows[row].clone()
        expected[9] += 1
        expected[7] += 100
        others = [token for token in range(40) if ids and token not in ids]
        expected[others] = -torch.inf
        assert torch.equal(found[row], expected)


def test_penalties_apply_to_the_output_only():
    logits = torch.tensor([[3.0, 2.9, 0.0, 2.5]])
    for penalties, output, expected in [
        ({"presence_penalty": 2}, [], 0),  # token 0 is in the prompt
        ({"presence_penalty": 0.3}, [0, 0, 0], 1),
        ({"presence_penalty": 0.3}, [0, 1, 1], 0),
        ({"frequency_penalty": 0.3}, [0, 1, 1], 0),
        ({"frequency_penalty": 0.3}, [0, 0, 1], 1),
        ({"frequency_penalty": 0.3}, [0, 0, 1, 1], 3),
        ({"frequency_penalty": -2}, [2, 2], 2),
        ({"frequency_penalty": 0.3, "logit_bias": {0: 1.0}}, [0, 0, 1], 0),
    ]:
        sequence = make_sequence(output=output, temperature=0, **penalties)
        assert tokens_of(logits, [sequence]) == [expected], (penalties, output)


def test_penalties_follow_the_growing_output():
    sequence = make_sequence(temperature=0, frequency_penalty=1.0)
    logits = torch.tensor([[5.0, 4.5, 0.0, 4.2]])
    for _ in range(7):
        sequence.tokens += tokens_of(logits, [sequence])
    assert sequence.tokens[len(PROMPT) :] == [0, 1, 3, 0, 1, 3, 0]


def test_penalties_apply_to_many_different_tokens():
    output = list(range(5, 80))
    logits = torch.zeros(1, 100)
    logits[0, 5:] = 1.0
    sequence = make_sequence(output=output, temperature=0, presence_penalty=0.5)
    assert tokens_of(logits, [sequence]) == [80]
    logits[0, 80:] = 0.0
    assert tokens_of(logits, [sequence]) == [5]


def test_no_end_token_is_chosen_before_min_tokens():
    logits = torch.tensor([[0.0, 1.0, 9.0, 8.0]])
    params = {"temperature": 0, "min_tokens": 2, "stop_token_ids": frozenset([3, 10**9])}
    assert tokens_of(logits, [make_sequence(output=[0], **params)]) == [1]
    assert tokens_of(logits, [make_sequence(output=[0, 0], **params)]) == [END]
    assert tokens_of(logits, [make_sequence(output=[0], **params | {"ignore_eos": True})]) == [1]


def test_a_seed_fixes_the_output_whatever_the_batch():
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    for params in (
        {},
        {"top_p": 0.8},
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        {"min_p": 0.01, "presence_penalty": 0.7},
        {"top_k": 40, "logprobs": 2},
    ):
        alone = make_sequence(seed=5, **params)
        expected = [tokens_of(row[None], [alone])[0] for row in logits]
        among = make_sequence(seed=5, **params)
        others = [
            make_sequence(seed=6, temperature=0, frequency_penalty=1),
            make_sequence(seed=7, top_p=0.5),
            make_sequence(seed=8, top_k=7),
            make_sequence(seed=9, top_k=300, top_p=0.9, min_p=0.1),
            make_sequence(seed=10, temperature=0.1, logprobs=5),
        ]
        got = []
        for step, row in enumerate(logits):
            batch = others[: step % 6]
            rows = torch.cat([torch.randn(len(batch), 300), row[None]])
            got.append(tokens_of(rows, [*batch, among])[-1])
        assert got == expected
        other = make_sequence(seed=9, **params)
        assert [tokens_of(row[None], [other])[0] for row in logits] != expected


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9, "top_k": 2, "seed": 1}])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1, "presence_penalty": 1}])
def test_a_non_finite_row_is_reported_and_affects_no_other(params, more):
    nan, inf = torch.nan, torch.inf
    rows = torch.tensor([[0.0, 99], [nan, 1], [99, 0], [0, inf], [nan, nan], [-inf, 0], [inf, inf]])
    sequences = [make_sequence(**params, **more) for _ in rows]
    bad = sampler.INVALID
    assert tokens_of(rows, sequences) == [1, bad, 0, bad, bad, bad, bad]


def test_a_row_without_any_allowed_token_is_invalid():
    rows = torch.zeros(2, 3)
    for params in ({"temperature": 0}, {}):
        stuck = make_sequence(min_tokens=1, stop_token_ids=frozenset([0, 1]), **params)
        assert tokens_of(rows, [stuck, make_sequence(**params)])[0] == sampler.INVALID


def test_the_host_reads_from_the_device_once(monkeypatch):
    reads = []

    def read(tensor):
        reads.append(tensor.shape)
        return [0] * tensor.numel()

    # A meta tensor has no values: reading one before the end raises an error.
    monkeypatch.setattr(torch.Tensor, "tolist", read)
    greedy = [make_sequence(temperature=0)] * 3
    every = [
        *greedy,
        make_sequence(top_k=5, top_p=0.9, min_p=0.1),
        make_sequence(top_p=0.9),
        make_sequence(top_k=1100, logprobs=4, frequency_penalty=1, output=[7, 8]),
        make_sequence(logit_bias={5: 1.0}, min_tokens=3, stop_token_ids=frozenset([4])),
        make_sequence(temperature=0, logprobs=0, grammar=AnyToken()),
    ]
    for batch in (greedy, every, every[3:5]):
        reads.clear()
        logits = torch.empty(len(batch), 300, device="meta")
        assert len(sampler.sample(logits, batch, {END}).read()) == len(batch)
        assert len(reads) == 1


class Almost:
    """A generator that returns the largest number below 1."""

    def random(self):
        return 1 - 2**-53


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_token_of_weight_zero_is_never_drawn(params):
    sequence = make_sequence(**params)
    sequence.random = Almost()
    assert tokens_of(torch.tensor([[0.0, 0.0, -1e9, -1e9]]), [sequence]) == [1]


def test_random_numbers_are_drawn_only_if_needed():
    class Unused:
        def random(self):
            raise AssertionError("a greedy sequence needs no random number")

    for params in ({"temperature": 0}, {"top_k": 1}):
        sequence = make_sequence(**params)
        sequence.random = Unused()
        assert tokens_of(torch.tensor([[0.0, 1.0]]), [sequence, make_sequence()][:1]) == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_single_precision(dtype):
    rows = torch.tensor([[20.0, 19.875, 0.0, 1.0]] * 3).to(dtype)
    batch = [
        make_sequence(temperature=0),
        # Too small a difference for the type: penalties are subtracted in single precision.
        make_sequence(output=[0], temperature=0, presence_penalty=0.126),
        make_sequence(temperature=0.01, logprobs=1),
    ]
    sampled = sampler.sample(rows.clone(), batch).read()
    assert [each.token_id for each in sampled] == [0, 1, 0]
    expected = torch.log_softmax(rows[2].float(), dim=-1)[0].item()
    assert sampled[2].logprobs.logprob == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", float("nan")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("frequency_penalty", -2.1),
        ("logit_bias", {5: 101.0}),
        ("min_tokens", -1),
        ("min_tokens", 100),
        ("logprobs", 21),
        ("logprobs", -1),
    ],
)
def test_invalid_options_are_rejected(name, value):
    with pytest.raises(ValueError, match=f"{name}.* is .*; it must") as caught:
        SamplingParams(**{"max_tokens": 99, name: value})
    assert str(101.0 if name == "logit_bias" else value) in str(caught.value)


def test_invalid_stop_strings_are_rejected():
    with pytest.raises(ValueError, match="must not be empty"):
        SamplingParams(max_tokens=1, stop=("",))
