"""Test the engine around the forward pass: budgets, errors of one sequence, cancellation."""

import dataclasses

import numpy as np
import pytest
import torch

from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import Admitted, Generated


def prompt(seed, length):
    return np.random.default_rng(seed).integers(32, 127, length).tolist()


def test_a_step_stays_within_its_token_budget(make_bench, llama, monkeypatch):
    sizes = []
    forward = llama.model.forward

    def record(*args, **kwargs):
        sizes.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(llama.model, "forward", record)
    bench = make_bench(token_budget=20, max_batch=4)
    for index in range(6):
        bench.add(f"s{index}", prompt(index, 70), 5)
    bench.run()
    assert max(sizes) == 20
    assert all(bench.finish_reason(f"s{index}") for index in range(6))


def test_at_most_max_batch_sequences_run(make_bench):
    bench = make_bench(max_batch=2)
    for index in range(5):
        bench.add(f"s{index}", [1, 2, 3], 4)
    most = 0
    while bench.engine.step():
        most = max(most, bench.engine.stats().running)
    assert most == 2


def test_admission_is_emitted_before_the_tokens(make_bench):
    bench = make_bench()
    bench.add("s", prompt(0, 100), 2)
    bench.engine.step()
    assert [type(event) for event in bench.events] == [Admitted]
    bench.run()
    assert [type(event) for event in bench.events] == [Admitted, Generated, Generated]


def test_impossible_requests_fail_alone(make_bench):
    bench = make_bench(kv_tokens=256)
    bench.add("good", prompt(0, 20), 4)
    bench.add("empty", [], 4)
    bench.add("outside", [1, 300], 4)
    bench.add("too long", prompt(1, 200), 57)
    bench.add("just fits", prompt(1, 200), 56)
    bench.run()
    assert "empty" in bench.error("empty")
    assert "0 to 299" in bench.error("outside")
    assert "limit is 256" in bench.error("too long")
    assert bench.finish_reason("good") == bench.finish_reason("just fits") == "length"
    assert bench.engine.stats().failed == 3


def test_an_id_cannot_be_used_by_two_active_sequences(make_bench):
    bench = make_bench()
    bench.add("s", [1], 2)
    with pytest.raises(ValueError, match="already"):
        bench.add("s", [1], 2)


def test_non_finite_logits_fail_only_their_sequence(make_bench, llama, monkeypatch):
    reference = make_bench()
    for name in ("a", "c"):
        reference.add(name, prompt(ord(name), 40), 12)
    reference.run()
    forward = llama.model.model.embed_tokens.forward

    def poison(ids):
        embedded = forward(ids)
        return torch.where((ids == 7)[..., None], torch.nan, embedded)

    monkeypatch.setattr(llama.model.model.embed_tokens, "forward", poison)
    # The cache is so small that the bad pages are reused immediately.
    bench = make_bench(kv_tokens=16 * 12, max_batch=2)
    for round_ in range(3):
        for name in ("a", "bad", "c"):
            tokens = [7, *prompt(5, 39)] if name == "bad" else prompt(ord(name), 40)
            bench.add(f"{name}{round_}", tokens, 12)
        bench.run()
        assert "not finite" in bench.error(f"bad{round_}")
        for name in ("a", "c"):
            assert bench.text(f"{name}{round_}") == reference.text(name)
    assert bench.of("bad2", Admitted)[0].cached_tokens == 0


def test_a_failed_forward_pass_fails_only_its_sequences(make_bench, llama, monkeypatch):
    bench = make_bench(max_batch=2)
    for name in ("a", "b", "c"):
        bench.add(name, prompt(ord(name), 30), 4)
    with monkeypatch.context() as patch:

        def broken(**kwargs):
            raise RuntimeError("out of memory")

        patch.setattr(llama.model, "forward", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            bench.engine.step()
    bench.run()
    assert "out of memory" in bench.error("a")
    assert "out of memory" in bench.error("b")
    assert bench.finish_reason("c") == "length"


def test_sequences_are_cancelled_in_every_state(make_bench):
    bench = make_bench(token_budget=32, max_batch=2)
    bench.add("decoding", prompt(0, 20), 50)
    bench.engine.step()
    bench.add("prefilling", prompt(1, 200), 50)
    bench.add("waiting", prompt(2, 20), 50)
    bench.engine.step()
    for name in ("decoding", "prefilling", "waiting", "unknown"):
        bench.engine.cancel(name)
        bench.engine.cache.check(bench.engine.running)
    emitted = len(bench.events)
    assert not bench.engine.running
    bench.run()
    assert not bench.engine.step()
    assert len(bench.events) == emitted
    assert bench.engine.stats().cancelled == 3
    assert bench.engine.cache.used_share == 0


def test_samples_of_a_call_compute_their_prompt_once(make_bench):
    bench = make_bench()
    tokens = prompt(0, 100)
    for index in range(3):
        bench.add(f"s{index}", tokens, 4, group="call", temperature=1.0, seed=index)
    bench.run()
    assert [bench.cached(f"s{index}") for index in range(3)] == [0, 96, 96]


def test_a_cancelled_leader_does_not_block_its_group(make_bench):
    bench = make_bench(token_budget=16)
    for index in range(2):
        bench.add(f"s{index}", prompt(0, 100), 4, group="call")
    bench.engine.step()
    bench.engine.cancel("s0")
    bench.run()
    assert bench.finish_reason("s1") == "length"


def test_stop_strings_and_tokens_end_an_output(make_bench, builtin):
    tokens = builtin.tokenizer("Once upon a time")["input_ids"]

    def run(**params):
        bench = make_bench(builtin)
        bench.add("s", tokens, 20, temperature=1.0, seed=1, **params)
        bench.run()
        generated = sum(event.tokens for event in bench.of("s", Generated))
        return bench.text("s"), bench.finish_reason("s"), generated

    text, reason, generated = run()
    assert (len(text), reason, generated) == (20, "length", 20)
    # One character is one token here. A stop token counts and is not shown.
    first = text.index(text[9])
    assert run(stop_token_ids=frozenset([ord(text[9])])) == (text[:first], "stop", first + 1)
    assert run(stop=(text[5:8],)) == (text[: text.index(text[5:8])], "stop", 8)
    assert run(stop=(text[17:] + "never",)) == (text, "length", 20)
    shown = {"include_stop": True}
    end = text.index(text[5:8]) + 3
    assert run(stop=(text[5:8],), **shown) == (text[:end], "stop", 8)
    stop_token = frozenset([ord(text[9])])
    assert run(stop_token_ids=stop_token, **shown) == (text[: first + 1], "stop", first + 1)


def test_special_tokens_are_shown_on_demand(make_bench, builtin):
    (token,) = builtin.tokenizer.all_special_ids[:1]
    for skip, expected in ((True, ""), (False, builtin.tokenizer.decode([token] * 3))):
        bench = make_bench(builtin)
        options = {"allowed_token_ids": (token,), "ignore_eos": True, "skip_special": skip}
        bench.add("s", [1, 2, 3], 3, **options)
        bench.run()
        assert bench.text("s") == expected


def test_the_end_token_ends_an_output_unless_it_is_ignored(make_bench, builtin):
    tokens = builtin.tokenizer("Once upon a time")["input_ids"]
    eager = dataclasses.replace(builtin, eos_ids=frozenset(range(256)))
    for ignore, expected in ((False, (1, "stop")), (True, (5, "length"))):
        bench = make_bench(eager)
        bench.add("s", tokens, 5, ignore_eos=ignore)
        bench.run()
        generated = sum(event.tokens for event in bench.of("s", Generated))
        assert (generated, bench.finish_reason("s")) == expected


def test_seeded_output_is_equal_alone_and_in_a_batch(make_bench):
    alone = make_bench()
    alone.add("s", prompt(0, 50), 20, temperature=0.8, top_p=0.9, seed=11)
    alone.run()
    crowd = make_bench(token_budget=33)
    for index in range(7):
        crowd.add(f"o{index}", prompt(index, 30 + index), 12, temperature=1.0)
    crowd.engine.step()
    crowd.add("s", prompt(0, 50), 20, temperature=0.8, top_p=0.9, seed=11)
    crowd.run()
    assert crowd.text("s") == alone.text("s") != ""


@pytest.mark.parametrize(
    "wrong", [{"kv_tokens": 15}, {"max_batch": 0}, {"token_budget": 31, "max_batch": 32}]
)
def test_invalid_sizes_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EngineOptions(**{"kv_tokens": 1024} | wrong)
