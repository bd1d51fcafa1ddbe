"""A step is launched before the previous tokens are known, unless it needs them."""

import numpy as np
import pytest
from sequences import AnyToken

from fairserve.engine.torch import sampler
from fairserve.engine.torch.events import Generated
from fairserve.engine.torch.sequence import Sequence


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


@pytest.fixture
def ordered_bench(make_bench, llama, monkeypatch):
    """Return a bench, and the order of passes and emitted tokens."""
    happened = []
    forward = llama.model.forward

    def noted(**inputs):
        happened.append("pass")
        return forward(**inputs)

    monkeypatch.setattr(llama.model, "forward", noted)
    bench = make_bench()

    def hear(events):
        bench.events.extend(events)
        happened.extend("token" for event in events if isinstance(event, Generated))

    bench.engine._emit = hear
    return bench, happened


def test_the_next_pass_begins_before_the_token_is_emitted(ordered_bench, overlap):
    bench, happened = ordered_bench
    bench.add("s", prompt(1, 20), 4, ignore_eos=True)
    bench.run()
    if overlap:
        assert happened == ["pass", *["pass", "token"] * 3, "token"]
    else:
        assert happened == ["pass", "token"] * 4


def test_a_sequence_with_an_end_token_is_computed_once_more(ordered_bench, overlap):
    bench, happened = ordered_bench
    bench.add("length", prompt(1, 20), 9, ignore_eos=True)
    bench.run()
    assert happened.count("pass") == 9
    happened.clear()
    bench.add("end", prompt(1, 20), 9, stop_token_ids=frozenset(range(300)))
    bench.run()
    assert happened.count("token") == 1
    assert happened.count("pass") == (2 if overlap else 1)


@pytest.mark.parametrize("params", [{"presence_penalty": 0.5}, {"grammar": AnyToken()}])
def test_penalties_and_grammars_wait_for_the_output(params, ordered_bench):
    bench, happened = ordered_bench
    bench.add("s", prompt(1, 20), 4, ignore_eos=True, **params)
    bench.add("free", prompt(2, 20), 4, ignore_eos=True)
    bench.run()
    assert happened == ["pass", "token", "token"] * 4


def test_a_late_device_error_fails_the_calls_of_its_step(make_bench, monkeypatch):
    bench = make_bench(max_batch=2)
    for name in ("a", "b", "c"):
        bench.add(name, prompt(ord(name), 30), 4)
    with monkeypatch.context() as patch:

        def broken(self):
            raise RuntimeError("device lost")

        patch.setattr(sampler.Choice, "read", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            bench.run()
    bench.run()
    assert "device lost" in bench.error("a")
    assert "device lost" in bench.error("b")
    assert bench.finish_reason("c")


def test_a_call_that_joined_after_the_failed_step_is_served(make_bench, monkeypatch):
    bench = make_bench(overlap=True)
    bench.add("a", prompt(1, 30), 4, ignore_eos=True)
    bench.engine.step()
    bench.add("b", prompt(2, 30), 4, ignore_eos=True)
    with monkeypatch.context() as patch:

        def broken(self):
            raise RuntimeError("device lost")

        patch.setattr(sampler.Choice, "read", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            bench.engine.step()
    bench.run()
    assert "device lost" in bench.error("a")
    assert sum(event.tokens for event in bench.of("b", Generated)) == 4


def test_the_id_of_a_cancelled_sequence_can_be_reused_immediately(make_bench):
    bench = make_bench()
    bench.add("s", prompt(1, 20), 30, ignore_eos=True)
    for _ in range(4):
        bench.engine.step()
    bench.engine.cancel("s")
    bench.events.clear()
    bench.add("s", prompt(2, 20), 5, ignore_eos=True)
    bench.run()
    assert sum(event.tokens for event in bench.of("s", Generated)) == 5


def test_no_sequence_is_preempted_before_its_token_is_known(make_bench, monkeypatch):
    bench = make_bench(kv_tokens=8 * 16, spare_share=0.0)
    pending = []
    preempted = Sequence.preempted

    def noted(self):
        pending.append(self.pending_tokens)
        preempted(self)

    monkeypatch.setattr(Sequence, "preempted", noted)
    for index in range(4):
        bench.add(f"s{index}", prompt(index, 20), 40, ignore_eos=True)
    bench.run()
    assert pending
    assert not any(pending)
    for index in range(4):
        assert sum(event.tokens for event in bench.of(f"s{index}", Generated)) == 40


def test_a_sequence_that_waits_for_a_token_is_not_requeued(make_bench, overlap):
    bench = make_bench()
    bench.add("s", prompt(1, 20), 30, ignore_eos=True)
    bench.engine.step()
    bench.engine.step()
    (sequence,) = bench.engine.running
    if overlap:
        with pytest.raises(ValueError, match="s waits for a token"):
            sequence.preempted()
    else:
        sequence.preempted()
