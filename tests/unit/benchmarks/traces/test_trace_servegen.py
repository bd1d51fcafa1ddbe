"""Requests are sampled from ServeGen's clients: their number, times, lengths, and errors."""

import json

import numpy as np
import pytest

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.benchmarks.traces.servegen import (
    QUANTILES,
    ServeGenOptions,
    servegen_pair,
)
from fairserve.engine.simulated.traces.model import TraceError

HEADER = "client,t_s,rate_rps,iat_cv,dist,shape,scale"
STEADY = "Gamma,1,0.5"
QUANTILE_COUNT = len(QUANTILES)


def lengths(client=0, t_s=0, **quantiles):
    given = quantiles or {"input_tokens": 100, "output_tokens": 10}
    lists = {k: v if isinstance(v, list) else [v] * QUANTILE_COUNT for k, v in given.items()}
    return {"client": client, "t_s": t_s, **lists}


def pair(tmp_path, rates, records, end=""):
    path = tmp_path / "s_rates.csv"
    path.write_text("\n".join([HEADER, *rates, end]))
    (tmp_path / "s_lengths.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def sampled(path, from_s=0.0, to_s=None, **options):
    return read_trace(path, servegen=ServeGenOptions(from_s, to_s, **options)).interactions


def test_a_window_gets_its_rate_within_its_bounds(tmp_path):
    rates = [f"0,{t},0.0766667,1,{STEADY}" for t in (600, 1200)]  # 46 requests each
    path = pair(tmp_path, [*rates, f"7,600,2,1,{STEADY}"], [lengths(0), lengths(7)])
    runs = sampled(path, 600, 1800)
    times = {
        user: [run.arrival_s for run in runs if run.user == user] for user in {r.user for r in runs}
    }
    assert {user: len(values) for user, values in times.items()} == {"0": 92, "7": 1200}
    assert sum(t < 600 for t in times["0"]) == 46
    assert max(times["7"]) < 600
    assert len({run.interaction_id for run in runs}) == len(runs)
    assert {(run.app, run.tenant) for run in runs} == {("servegen", "default")}


def test_the_default_range_is_the_first_window(tmp_path):
    path = pair(tmp_path, [f"0,{t},1,1,{STEADY}" for t in (0, 600)], [lengths()])
    assert len(read_trace(path)) == 600
    assert read_trace(path).name == "s"


def test_the_range_is_cut_and_starts_at_zero(tmp_path):
    path = pair(tmp_path, [f"0,{t},1,1,{STEADY}" for t in (0, 600, 1200)], [lengths()])
    whole = sampled(path, 0, 1800)
    part = sampled(path, 300, 900)
    expected = [
        (i.interaction_id, i.arrival_s - 300) for i in whole if 300 <= i.arrival_s < 900
    ]  # fmt: skip
    assert [i.interaction_id for i in part] == [iid for iid, _ in expected]
    assert [i.arrival_s for i in part] == pytest.approx([at for _, at in expected])
    assert 0 < len(part) < len(whole)


def test_the_trace_is_determined_by_the_seed(tmp_path):
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths()])
    assert sampled(path, seed=1) == sampled(path, seed=1)
    assert sampled(path, seed=1) != sampled(path, seed=2)


@pytest.mark.parametrize(
    ("dist", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Gamma", 4, 0.5), ("Weibull", 2, 0.5227)]
)
def test_times_between_requests_have_the_named_distribution(tmp_path, dist, shape, cv):
    path = pair(tmp_path, [f"0,0,10,1,{dist},{shape},0.01"], [lengths()])
    gaps = np.diff([run.arrival_s for run in sampled(path)])
    assert len(gaps) == 10 * 600 - 1
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_burst_keeps_its_duration(tmp_path):
    path = pair(tmp_path, ["0,0,2,1,Gamma,4,0.0125"], [lengths()])  # 1,200 requests, 0.05 s apart
    for factor in (1.0, 3.0):
        times = [run.arrival_s for run in sampled(path, rate_factor=factor)]
        assert len(times) == 1200 * factor
        assert times[-1] - times[0] == pytest.approx(60, rel=0.05)


def test_bursts_begin_anywhere(tmp_path):
    path = pair(tmp_path, ["0,0,1,1,Gamma,4,0.001"], [lengths()])
    begins = [sampled(path, seed=seed)[0].arrival_s for seed in range(40)]
    assert 150 < np.mean(begins) < 450
    assert min(begins) < 150
    assert max(begins) > 450


def test_times_beyond_the_window_are_scaled_down(tmp_path):
    path = pair(tmp_path, ["0,0,10,1,Gamma,1,40"], [lengths()])
    times = [run.arrival_s for run in sampled(path)]
    assert len(times) == 6000
    assert np.mean(times) == pytest.approx(300, rel=0.1)


def test_no_request_is_lost_after_one_long_gap(tmp_path):
    # All other gaps are negligible compared to it.
    path = pair(tmp_path, ["0,0,1,1,Weibull,0.01,1"], [lengths()])
    times = [run.arrival_s for run in sampled(path)]
    assert len(times) == 600
    assert 599.99 < times[-1] < 600


def test_fractions_of_a_request_are_drawn(tmp_path):
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths()])
    counts = [len(sampled(path, seed=seed, rate_factor=0.0175)) for seed in range(40)]  # 10.5 each
    assert set(counts) == {10, 11}


def test_lengths_follow_their_quantiles_independently(tmp_path):
    inputs = [int(1000 * q) for q in QUANTILES]
    outputs = [0] * 13 + [200] * 13  # the median jumps from 0 at 0.5 to 200 at 0.55
    record = lengths(input_tokens=inputs, output_tokens=outputs)
    path = pair(tmp_path, [f"0,0,10,1,{STEADY}"], [record])
    calls = [run.calls[0] for run in sampled(path)]
    prompts = np.array([call.prompt_tokens for call in calls])
    drawn = np.array([call.output_tokens for call in calls])
    assert prompts.min() >= 1
    assert prompts.max() <= 1000
    assert np.quantile(prompts, [0.25, 0.5, 0.9]) == pytest.approx([250, 500, 900], abs=15)
    assert (drawn == 1).mean() == pytest.approx(0.5, abs=0.02)  # 0 becomes 1
    assert (drawn == 200).mean() == pytest.approx(0.45, abs=0.02)
    assert abs(np.corrcoef(prompts, drawn)[0, 1]) < 0.03


def test_all_modalities_count_for_the_prompt(tmp_path):
    parts = {"text_tokens": 5, "image_tokens": 100, "audio_tokens": 20, "video_tokens": 3}
    record = lengths(**parts, output_tokens=9, image_count=4)
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [record])
    assert {run.calls[0].prompt_tokens for run in sampled(path)} == {128}


def test_the_latest_lengths_at_or_before_the_window_apply(tmp_path):
    records = [
        lengths(0, t, input_tokens=n, output_tokens=1) for t, n in [(1200, 3), (0, 1), (600, 2)]
    ]
    path = pair(tmp_path, [f"0,{t},1,1,{STEADY}" for t in (0, 600, 1800)], records)
    runs = sampled(path, 0, 2400)
    drawn = {(run.arrival_s // 600, run.calls[0].prompt_tokens) for run in runs}
    assert drawn == {(0, 1), (1, 2), (3, 3)}


def test_clients_and_windows_without_lengths_are_omitted(tmp_path):
    rates = [f"{client},{t},1,1,{STEADY}" for client in (0, 1) for t in (0, 600)]
    path = pair(tmp_path, rates, [lengths(0, 600)])
    assert {run.user for run in sampled(path, 0, 1200)} == {"0"}
    assert len(sampled(path, 0, 1200)) == 600
    with pytest.raises(TraceError, match=r"no request in \[0, 600\) s; give another range"):
        sampled(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,0,1,1,Gamma,1", "expected 7 columns"),
        ("x,0,1,1,Gamma,1,1", "client must be an integer of at least 0, got 'x'"),
        ("0,-600,1,1,Gamma,1,1", "t_s must be a finite number of at least 0"),
        ("0,0,nan,1,Gamma,1,1", "rate_rps must be a finite number of at least 0"),
        ("0,0,1,1,Pareto,1,1", "dist 'Pareto'; allowed are Gamma, Weibull"),
        ("0,0,1,1,Gamma,0,1", "shape and scale must be above 0"),
        ("0,0,1,1,Gamma,1,0", "shape and scale must be above 0"),
        ("0,0,1,1,Gamma,,1", "shape must be a finite number of at least 0, got ''"),
        ("0,0,1,1,Weibull,1e-4,1", "shape 0.0001: too heavy a tail to sample"),
    ],
)
def test_errors_of_rates_name_the_line(tmp_path, row, message):
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}", row], [lengths()])
    with pytest.raises(TraceError, match=message) as caught, np.errstate(over="ignore"):
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lengths(client=True), "client must be an integer of at least 0"),
        (lengths(t_s=-1), "t_s must be a finite number of at least 0"),
        (lengths(output_tokens=3), "needs the quantiles of one of input_tokens, text_tokens"),
        (lengths(input_tokens=3), "output_tokens must be a list of 26 quantiles"),
        (lengths(input_tokens=[1], output_tokens=3), "input_tokens must be a list of 26"),
        (lengths(input_tokens=-1, output_tokens=3), "each of input_tokens must be a finite"),
        (lengths(input_tokens=[2, *[1] * 25], output_tokens=3), "input_tokens: quantiles must not"),
    ],
)
def test_errors_of_lengths_name_the_line(tmp_path, record, message):
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths(), record])
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{tmp_path / 's_lengths.jsonl'}:2: ")


@pytest.mark.parametrize(
    "options",
    [{"from_s": -1}, {"from_s": 5, "to_s": 5}, {"to_s": float("inf")}, {"to_s": float("nan")},
     {"rate_factor": 0}, {"rate_factor": float("inf")}, {"seed": -1}],
)  # fmt: skip
def test_invalid_options_are_rejected(options):
    with pytest.raises(TraceError, match=f"{list(options)[-1]} .*is allowed"):
        ServeGenOptions(**options)


def test_a_range_with_too_many_requests_is_rejected(tmp_path):
    path = pair(tmp_path, [f"0,0,4000,1,{STEADY}"], [lengths()])
    with pytest.raises(
        TraceError, match=r"about 2400000 requests in \[0, 600\) s; at most 2000000"
    ):
        read_trace(path)
    assert len(sampled(path, rate_factor=0.001)) == 2400


def test_either_file_of_a_pair_is_sufficient(tmp_path):
    rates = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths()])
    other = tmp_path / "s_lengths.jsonl"
    assert read_trace(rates) == read_trace(other)
    packed = other.rename(tmp_path / "s_lengths.jsonl.gz")
    assert servegen_pair(rates) == (rates, packed)
    assert servegen_pair(packed) == (rates, packed)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("s_rates.csv", r"needs s_lengths\.jsonl or s_lengths\.jsonl\.gz beside it"),
        ("s_lengths.jsonl", r"needs s_rates\.csv or s_rates\.csv\.gz beside it"),
    ],
)
def test_a_missing_sibling_is_named(tmp_path, keep, message):
    pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths()])
    for path in tmp_path.iterdir():
        if path.name != keep:
            path.unlink()
    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path / keep)


def test_a_pair_is_found_by_its_names(tmp_path):
    path = pair(tmp_path, [f"0,0,1,1,{STEADY}"], [lengths()]).rename(tmp_path / "rates.csv")
    with pytest.raises(TraceError, match=r"named \*_rates\.csv or \*_lengths\.jsonl"):
        read_trace(path)
