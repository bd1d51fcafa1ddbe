"""Every recorded trace loads with the counts, lengths and shared prefixes of its description."""

import csv
import gzip
import json

import numpy as np
import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.benchmarks.traces.servegen import ServeGenOptions

# By file: block size, interactions, calls, sequences, mean input and output tokens, agents, hit rate
# of an infinite cache by blocks, hit rate within each interaction.
INTERACTION_FILES = {
    "autocoderover_run_1": (16, 300, 4765, 4765, 2132.5, 183.13, 3, 0.6725, 0.6597),
    "claude_code_sessions_A": (64, 334, 21731, 21731, 117382, 428.39, 3, 0.9629, 0.9629),
    "tot_game24": (16, 100, 4546, 10438, 305.31, 60.58, 2, 0.9829, 0.8978),
    "tau_airline_gpt4o": (16, 200, 3944, 3944, 1986.25, 58.32, 2, 0.9189, 0.8849),
    "sweagent_cost_2_1": (64, 138, 1359, 1359, 5228.49, 146.49, 1, 0.8570, 0.8359),
    "lmcache_miniswe": (16, 20, 402, 402, 7515.29, 109.69, 1, 0.9354, 0.9345),
}


def hit_rates(trace):
    """Return the share of blocks seen before: anywhere in the scope, and within the interaction."""
    end = max(s + n for run in trace.interactions for c in run.calls for s, n in c.blocks)
    anywhere = np.zeros(end, dtype=bool)
    hits = own_hits = total = 0
    for run in trace.interactions:
        own = np.zeros(end, dtype=bool)
        seen = own if run.scope == "session" else anywhere
        for call in run.calls:
            for start, count in call.blocks:
                part = slice(start, start + count)
                total += count
                hits += int(np.count_nonzero(seen[part]))
                own_hits += int(np.count_nonzero(own[part]))
                own[part] = seen[part] = True
    return hits / total, own_hits / total


SMALL = {"tau_airline_gpt4o", "tot_game24", "sweagent_cost_2_1", "lmcache_miniswe"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SMALL else pytest.mark.deep) for n in INTERACTION_FILES],
)
def test_interaction_files_match_their_description(name):
    size, runs, calls, sequences, input_tokens, output_tokens, agents, hits, own = (
        INTERACTION_FILES[name]
    )
    trace = read_trace(shared_trace(f"{name}.jsonl.gz"))
    every = [call for run in trace.interactions for call in run.calls]
    assert (trace.name, trace.block_tokens, len(trace), trace.calls) == (name, size, runs, calls)
    assert sum(call.samples for call in every) == sequences
    assert np.mean([call.prompt_tokens for call in every]) == pytest.approx(input_tokens, abs=0.5)
    assert np.mean([call.output_tokens for call in every]) == pytest.approx(output_tokens, abs=5e-3)
    assert len({call.agent.split("#")[0] for call in every}) == agents
    assert hit_rates(trace) == pytest.approx((hits, own), abs=5e-5)


@pytest.mark.parametrize(
    ("name", "span_s"),
    [
        pytest.param("autocoderover_run_1", 8465.0, marks=pytest.mark.deep),
        ("lmcache_miniswe", 541.5),
    ],
)
def test_recorded_arrivals_match_their_description(name, span_s):
    trace = read_trace(shared_trace(f"{name}.jsonl.gz"))
    span = trace.interactions[-1].arrival_s - trace.interactions[0].arrival_s
    assert span == pytest.approx(span_s, abs=0.05)


def counts(trace):
    return (
        [run.calls[0].prompt_tokens for run in trace.interactions],
        [run.calls[0].output_tokens for run in trace.interactions],
    )


@pytest.mark.deep
def test_azure_matches_its_description():
    trace = read_trace(shared_trace("azure_llm_2023_conv.csv.gz"))
    prompts, outputs = counts(trace)
    assert len(trace) == trace.calls == 19_366
    assert int(trace.interactions[-1].arrival_s) == 3501  # the description rounds up
    assert np.quantile(prompts, [0.5, 0.95]) == pytest.approx([1020, 4083], abs=1)
    assert np.quantile(outputs, [0.5, 0.95]) == pytest.approx([129, 451], abs=1)
    minutes = np.bincount([int(run.arrival_s // 60) for run in trace.interactions])
    assert minutes.max() == 507


def test_vtc_matches_its_description():
    trace = read_trace(shared_trace("vtc_real_trace.csv.gz"))
    prompts, outputs = counts(trace)
    assert len(trace) == 1500
    assert trace.interactions[-1].arrival_s == pytest.approx(600, abs=1)
    assert np.quantile(prompts, [0.5, 0.95]) == pytest.approx([40, 653], abs=1)
    assert np.quantile(outputs, [0.5, 0.95]) == pytest.approx([211, 513], abs=1)
    service = {}
    for run, prompt, output in zip(trace.interactions, prompts, outputs, strict=True):
        service[run.user] = service.get(run.user, 0) + prompt + 2 * output
    assert len(service) == 27
    top = sorted(service.values(), reverse=True)
    assert [sum(top[:n]) / sum(top) for n in (1, 3, 10)] == pytest.approx(
        [0.222, 0.554, 0.819], abs=5e-4
    )


@pytest.mark.deep
def test_mooncake_matches_its_description():
    trace = read_trace(shared_trace("mooncake_conversation_trace.jsonl.gz"))
    prompts, outputs = counts(trace)
    assert (len(trace), trace.block_tokens) == (12_031, 512)
    assert trace.interactions[-1].arrival_s == pytest.approx(3537, abs=0.5)
    assert len({run.arrival_s for run in trace.interactions}) == 1180
    assert np.quantile(prompts, [0.5, 0.95]) == pytest.approx([6909, 39551], abs=1)
    assert np.quantile(outputs, [0.5, 0.95]) == pytest.approx([350, 698], abs=1)
    # 36.6 % in the description, which includes incomplete last blocks: they are rarely shared.
    assert hit_rates(trace)[0] == pytest.approx(0.3819, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "options", "clients", "absent", "left_out"),
    [
        pytest.param("m_small", {"rate_factor": 0.02}, 43, 5, 0.568, marks=pytest.mark.deep),
        pytest.param(
            "m_mid",
            {"from_s": 600.0, "rate_factor": 0.02},
            *(108, 35, 0.292),
            marks=pytest.mark.deep,
        ),
        ("mm_image", {"to_s": 3600.0}, 35, 0, 0.0),
    ],
)
def test_servegen_matches_its_description(name, options, clients, absent, left_out):
    path = shared_trace(f"servegen_{name}_rates.csv.gz")
    chosen = ServeGenOptions(**options)
    trace = read_trace(path, servegen=chosen)
    with gzip.open(path, "rt", newline="") as file:
        rates = [(r["client"], float(r["t_s"]), float(r["rate_rps"])) for r in csv.DictReader(file)]
    with gzip.open(shared_trace(f"servegen_{name}_lengths.jsonl.gz"), "rt") as file:
        known = {str(json.loads(line)["client"]) for line in file}
    assert len({client for client, *_ in rates}) == clients
    assert len({client for client, *_ in rates} - known) == absent
    lost = sum(rate for client, _, rate in rates if client not in known)
    assert lost / sum(rate for *_, rate in rates) == pytest.approx(left_out, abs=5e-4)

    window = [
        (client, rate)
        for client, t_s, rate in rates
        if chosen.from_s <= t_s < chosen.end_s and client in known
    ]
    requests = sum(rate for _, rate in window) * 600 * chosen.rate_factor
    assert trace.name == f"servegen_{name}"
    assert len(trace) == pytest.approx(requests, abs=len(window))
    assert {run.user for run in trace.interactions} <= {client for client, _ in window}
    assert trace.interactions[-1].arrival_s < chosen.end_s - chosen.from_s
