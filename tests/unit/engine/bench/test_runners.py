"""Three engines behind one interface give equal tokens and plausible times."""

import importlib.util
import os

import numpy as np
import pytest

from fairserve.benchmarks.bench.engine.workloads import limits
from fairserve.engine.torch.bench.continuous import ContinuousBatching
from fairserve.engine.torch.bench.generate import Generate
from fairserve.engine.torch.bench.ours import OurEngine
from fairserve.engine.torch.bench.passes import DECODES, PassGrid, points
from fairserve.engine.torch.bench.runner import (
    RunnerLimits,
    RunnerOutcome,
    RunnerRequest,
    RunnerUnavailableError,
)
from fairserve.engine.torch.bench.shapes import MAX_POSITIONS, twin

LIMITS = RunnerLimits(kv_tokens=1024, max_batch=8, token_budget=64)


def drawn(*sizes, seed=0):
    random = np.random.default_rng(seed)
    return [
        RunnerRequest(tuple(random.integers(0, 256, prompt).tolist()), output)
        for prompt, output in sizes
    ]


def continuous(llama):
    if importlib.util.find_spec("psutil") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("psutil is missing")
        pytest.skip("continuous batching needs psutil on a CPU")
    return ContinuousBatching(twin(llama), LIMITS)


MAKERS = {
    "fairserve": lambda llama: OurEngine(llama, LIMITS),
    "transformers cb": continuous,
    "generate": lambda llama: Generate(twin(llama)),
}


@pytest.fixture(params=MAKERS)
def runner(request, llama):
    made = MAKERS[request.param](llama)
    assert made.name == request.param
    yield made
    made.close()


def test_every_engine_gives_the_requested_tokens(runner, llama):
    requests = drawn((5, 4), (40, 7), (17, 2), (90, 5))
    outcome = runner.run(requests)
    reference = Generate(twin(llama))
    # One by one, so that nothing is padded.
    expected = tuple(reference.run([request]).outputs[0] for request in requests)
    assert outcome.outputs == expected
    assert len(outcome.first_token_s) == 4
    assert all(0 < first_s <= outcome.wall_s for first_s in outcome.first_token_s)
    again = runner.run(requests)
    assert again.outputs == expected


def test_useful_tokens_are_the_requested_ones():
    requests = [RunnerRequest((1, 2, 3), 4), RunnerRequest((1,), 6)]
    assert RunnerOutcome(2.0, (0.1, 0.2), ((), ())).tokens_per_s(requests) == 5.0


def test_requests_that_arrive_later_wait_for_their_time(llama):
    runner = OurEngine(llama, LIMITS)
    requests = drawn((5, 3), (9, 2), (12, 2))
    outcome = runner.run_at(requests, [0.0, 0.05, 0.1])
    assert outcome.wall_s > 0.1
    assert all(first_s > 0 for first_s in outcome.first_token_s)
    assert [len(output) for output in outcome.outputs] == [3, 2, 2]
    assert runner.run(requests).outputs == outcome.outputs


def test_records_cover_only_the_run(llama):
    runner = OurEngine(llama, LIMITS)
    runner.run(drawn((5, 3)))
    steps = runner.record(drawn((9, 3)))
    assert [step.load.sequences for step in steps] == [0, 1, 1]
    assert runner.record(drawn((8, 1)))[0].load.prefill_tokens == 8
    assert not runner.engine.recording


def test_an_impossible_request_is_an_error(llama):
    with pytest.raises(RuntimeError, match="limit"):
        OurEngine(llama, LIMITS).run([RunnerRequest((1,) * 2000, 5)])


def test_a_changed_interface_makes_an_engine_unavailable(llama):
    class Changed:
        def continuous_batching_context_manager(self, **options):
            raise TypeError("unexpected keyword argument 'generation_config'")

    with pytest.raises(RunnerUnavailableError, match="TypeError: unexpected keyword"):
        ContinuousBatching(Changed(), LIMITS)
    with pytest.raises(RunnerUnavailableError, match="AttributeError"):
        ContinuousBatching(object(), LIMITS)


# --- the grid -------------------------------------------------------------------------------------


def test_the_grid_fits_and_has_every_batch():
    size = RunnerLimits(kv_tokens=32_768, max_batch=32, token_budget=512)
    found = points(size)
    assert {len(contexts) for contexts in found} == {1, 2, 4, 8, 16, 32}
    for contexts in found:
        assert sum(contexts) + len(contexts) * DECODES <= size.kv_tokens
    assert any(len(set(contexts)) > 4 for contexts in found)
    assert max(max(contexts) for contexts in found) == 512


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sequences_of_the_grid_fit_the_benchmarks_models(on_gpu):
    lengths = [tokens for contexts in points(limits(on_gpu)) for tokens in contexts]
    assert max(lengths) + DECODES <= MAX_POSITIONS


def test_passes_are_equal_in_every_repetition(llama):
    size = RunnerLimits(kv_tokens=512, max_batch=4, token_budget=16)
    grid = PassGrid(OurEngine(llama, size), size, llama.vocabulary)
    grid.turn()
    grid.forget()
    for _ in range(2):
        grid.turn()
    passes = grid.medians()
    assert all(each.took_s > 0 for each in passes)
    decodes = [each for each in passes if not each.prefill_tokens]
    assert {each.sequences for each in decodes} >= {1, 2, 4}
    assert max(each.prefill_tokens + each.sequences for each in passes) == 16
    assert any(each.prefill_tokens and each.sequences for each in passes)
