"""Log probabilities are the model's own, whatever the options, in OpenAI's two formats."""

import math
from itertools import chain

import pytest
import torch
from sequences import PROMPT, make_sequence

from fairserve.engine.torch import sampler
from fairserve.engine.torch.events import Generated
from fairserve.engine.torch.logprobs import TokenLogprobs
from fairserve.engine.torch.openai.logprobs import chat_logprobs, completion_logprobs
from fairserve.engine.torch.openai.response import EngineAnswerWriter, SampleOutput
from fairserve.engine.torch.token_texts import TokenTexts


@pytest.fixture(scope="module")
def texts(byte_level):
    return TokenTexts(byte_level)


def test_logprobs_are_of_the_unmodified_distribution():
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)) * 3
    output = [int(rows[2].argmax())]
    batch = [
        make_sequence(temperature=0),
        make_sequence(temperature=0, logprobs=2),
        make_sequence(temperature=0, logprobs=0, output=output, frequency_penalty=2),
        make_sequence(temperature=0.2, logprobs=5, top_k=3, logit_bias={7: 50.0}),
        make_sequence(top_p=0.5, seed=1),
    ]
    report = sampler.sample(rows.clone(), batch).read()
    expected = torch.log_softmax(rows, dim=-1)
    assert report[0].logprobs is report[4].logprobs is None
    for row, count in ((1, 2), (2, 0), (3, 5)):
        token, logprobs = report[row]
        assert logprobs.token_id == token
        assert logprobs.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        best = expected[row].topk(count)
        assert [each for each, _ in logprobs.top] == best.indices.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert report[2].token_id != output[0]
    assert report[3].token_id == 7
    assert 7 not in dict(report[3].logprobs.top)


def test_more_logprobs_than_tokens_may_be_requested():
    (report,) = sampler.sample(
        torch.zeros(1, 3), [make_sequence(temperature=0, logprobs=20)]
    ).read()
    assert [value for _, value in report.logprobs.top] == pytest.approx([math.log(1 / 3)] * 3)


def test_a_non_finite_row_does_not_affect_others():
    rows = torch.tensor([[0.0, 0.0], [torch.nan, 0.0]])
    good, bad = sampler.sample(
        rows, [make_sequence(temperature=0, logprobs=1) for _ in rows]
    ).read()
    assert bad.token_id == sampler.INVALID
    assert good.logprobs.logprob == pytest.approx(math.log(0.5))


def entry(token_id, logprob, *top, offset=0):
    return TokenLogprobs(token_id, logprob, top, offset)


A, HALF, REST, END = ord("a"), 0xC3, 0xA4, 256


def test_the_format_of_chat(texts):
    report = chat_logprobs([entry(A, -0.5, (A, -0.5), (HALF, -math.inf)), entry(END, -1.0)], texts)
    assert report == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [A],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [A]},
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": [HALF]},
                ],
            },
            {"token": "<|end|>", "logprob": -1.0, "bytes": [*b"<|end|>"], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_the_format_of_completions(texts):
    report = completion_logprobs(
        [
            entry(A, -2.0, (HALF, -0.1), (REST, -0.3), offset=0),
            entry(HALF, -0.2, (HALF, -0.2), offset=1),
            entry(REST, -math.inf, offset=1),
        ],
        texts,
    )
    assert report == {
        "tokens": ["a", "\ufffd", "\ufffd"],
        "token_logprobs": [-2.0, -0.2, -9999.0],
        "top_logprobs": [{"\ufffd": -0.1, "a": -2.0}, {"\ufffd": -0.2}, {"\ufffd": -9999.0}],
        "text_offset": [0, 1, 1],
    }


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_chunks_and_whole_answers_agree(texts, kind):
    tokens = [entry(A, -0.5, (A, -0.5)), entry(HALF, -0.7, (A, -0.1), offset=1)]
    output = SampleOutput(["a", ""], tokens, 2)
    writer = EngineAnswerWriter(kind, "id", 0, "m", 5, [output], texts)
    chunks = [writer.delta(0, Generated("s", "", 1, None, each), False) for each in tokens]
    whole = writer.whole()["choices"][0]["logprobs"]
    for name in whole:
        if whole[name] is not None:
            parts = [chunk["choices"][0]["logprobs"][name] for chunk in chunks]
            assert list(chain.from_iterable(parts)) == whole[name]
    silent = EngineAnswerWriter(kind, "id", 0, "m", 5, [SampleOutput()])
    assert silent.whole()["choices"][0]["logprobs"] is None
    assert silent.delta(0, Generated("s", "x", 1, None), False)["choices"][0]["logprobs"] is None


def test_offsets_refer_to_the_output_text():
    sequence = make_sequence(temperature=0, logprobs=0, output=[5])
    sequence.output.characters = 17
    (report,) = sampler.sample(torch.zeros(1, 9), [sequence]).read()
    assert report.logprobs.text_offset == 17
    assert sequence.prompt_tokens == len(PROMPT)
