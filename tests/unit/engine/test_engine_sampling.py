"""Test the effects of a sequence's sampling options on its output in the engine."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fairserve.engine.torch.events import Generated
from fairserve.engine.torch.json_mode import JsonMode, token_table

PROMPT = list(b"Once upon a time")
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "k": {"enum": ["x", "y"]},
    },
    "required": ["n", "k"],
    "additionalProperties": False,
}


def generate(make_bench, loaded, max_tokens=20, **params):
    bench = make_bench(loaded)
    bench.add("s", PROMPT, max_tokens, **{"temperature": 1.0, "seed": 1, **params})
    bench.run()
    return bench


def logprobs_of(bench, name="s"):
    return [event.logprobs for event in bench.of(name, Generated)]


def test_penalties_reduce_repetition(make_bench, builtin):
    plain = generate(make_bench, builtin, 30, temperature=0).text("s")
    assert len(set(plain)) < 10
    varied = generate(make_bench, builtin, 30, temperature=0, presence_penalty=2).text("s")
    assert len(set(varied)) > len(set(plain))
    banned = generate(make_bench, builtin, 30, temperature=0, logit_bias={ord(plain[0]): -100})
    assert plain[0] not in banned.text("s")


def test_no_stop_ends_the_output_before_min_tokens(make_bench, builtin):
    text = generate(make_bench, builtin).text("s")
    stop, token = text[3:5], frozenset([ord(text[3])])
    at = text.index(stop)
    assert generate(make_bench, builtin, stop=(stop,)).text("s") == text[:at]
    # It ends with token number at + 2, which counts if it is above min_tokens.
    bench = generate(make_bench, builtin, stop=(stop,), min_tokens=at + 1)
    assert (bench.text("s"), bench.finish_reason("s")) == (text[:at], "stop")
    later = generate(make_bench, builtin, stop=(stop,), min_tokens=at + 2)
    assert later.text("s").startswith(text[: at + 2])
    first = text.index(text[3])
    assert generate(make_bench, builtin, stop_token_ids=token).text("s") == text[:first]
    masked = generate(make_bench, builtin, stop_token_ids=token, min_tokens=20)
    assert text[3] not in masked.text("s")
    assert (len(masked.text("s")), masked.finish_reason("s")) == (20, "length")


def test_the_end_token_is_not_chosen_before_min_tokens(make_bench, builtin):
    eager = {"logit_bias": {256: 100.0}}
    assert len(generate(make_bench, builtin, **eager).of("s", Generated)) == 1
    bench = generate(make_bench, builtin, min_tokens=7, **eager)
    assert (len(bench.text("s")), bench.finish_reason("s")) == (7, "stop")


def test_every_token_has_a_logprob_even_behind_a_stop_string(make_bench, builtin):
    whole = generate(make_bench, builtin, logprobs=2)
    text = whole.text("s")
    assert [chr(each.token_id) for each in logprobs_of(whole)] == list(text)
    assert [each.text_offset for each in logprobs_of(whole)] == list(range(20))
    assert all(len(each.top) == 2 for each in logprobs_of(whole))
    cut = generate(make_bench, builtin, logprobs=2, stop=(text[8:11],))
    at = text.index(text[8:11])
    assert (cut.text("s"), len(logprobs_of(cut))) == (text[:at], at + 3)
    assert logprobs_of(cut) == logprobs_of(whole)[: at + 3]
    stopped = generate(make_bench, builtin, logprobs=0, stop_token_ids=frozenset([ord(text[8])]))
    assert logprobs_of(stopped)[-1].token_id == ord(text[8])
    assert len(logprobs_of(stopped)) == len(stopped.text("s")) + 1
    assert set(logprobs_of(generate(make_bench, builtin))) == {None}


def test_logprobs_equal_those_of_the_model(make_bench, llama_folder):
    bench = make_bench()
    prompt = np.random.default_rng(0).integers(0, 256, 40).tolist()
    bench.add("s", prompt, 10, temperature=0.7, seed=3, top_k=5, presence_penalty=1.0, logprobs=1)
    bench.add("other", prompt[:20], 10, temperature=0)
    bench.run()
    ids = [each.token_id for each in logprobs_of(bench)]
    model = AutoModelForCausalLM.from_pretrained(llama_folder, attn_implementation="eager")
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1)
    for row, each in enumerate(logprobs_of(bench)):
        assert each.logprob == pytest.approx(float(expected[row, each.token_id]), abs=1e-3)
        assert each.top[0][0] == int(expected[row].argmax())
    assert set(logprobs_of(bench, "other")) == {None}


def test_json_mode_gives_valid_json_and_affects_no_other_sequence(make_bench, builtin):
    grammar = JsonMode(token_table(builtin.tokenizer, builtin.vocabulary, builtin.eos_ids)).compile(
        json.dumps(SCHEMA)
    )
    alone = generate(make_bench, builtin)
    bench = make_bench(builtin)
    for seed in range(3):
        bench.add(f"j{seed}", PROMPT, 60, temperature=seed / 3, seed=seed, grammar=grammar)
    bench.add("s", PROMPT, 20, temperature=1.0, seed=1)
    bench.run()
    for seed in range(3):
        value = json.loads(bench.text(f"j{seed}"))
        assert set(value) == {"n", "k"}
        assert value["n"] in range(100)
        assert value["k"] in "xy"
        assert bench.finish_reason(f"j{seed}") == "stop"
    assert bench.text("s") == alone.text("s")


class Stuck:
    """A grammar that fails after three tokens."""

    problem = ""

    def start(self):
        return Stuck()

    def allowed(self, output):
        if len(output) < 3:
            return np.full(9, -1, dtype=np.int32)
        self.problem = "the grammar is stuck"
        return np.zeros(9, dtype=np.int32)


class Raising(Stuck):
    """A grammar that raises after three tokens."""

    def start(self):
        return Raising()

    def allowed(self, output):
        if len(output) == 3:
            raise RuntimeError("the grammar is stuck")
        return super().allowed(output)


@pytest.mark.parametrize("grammar", [Stuck(), Raising()])
def test_a_failing_grammar_ends_only_its_sequence(make_bench, builtin, grammar):
    bench = make_bench(builtin)
    bench.add("bad", PROMPT, 10, temperature=1.0, grammar=grammar)
    bench.add("good", PROMPT, 10)
    bench.run()
    assert "the grammar is stuck" in bench.error("bad")
    assert len(bench.of("bad", Generated)) == 3
    assert bench.finish_reason("good") == "length"


def test_a_text_that_cannot_be_made_ends_only_its_sequence(make_bench, builtin, monkeypatch):
    bench = make_bench(builtin)
    bench.add("bad", PROMPT, 10)
    bench.add("good", PROMPT, 10)
    assert bench.engine.step()
    bad = bench.engine.batcher.running["bad"]

    def push(token_id, may_stop=True):
        raise ValueError("no such token")

    monkeypatch.setattr(bad.output, "push", push)
    bench.run()
    assert "no such token" in bench.error("bad")
    assert bench.finish_reason("good") == "length"
