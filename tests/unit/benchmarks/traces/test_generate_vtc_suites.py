"""Test the synthetic workloads of the VTC paper."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fairserve.benchmarks.traces.generate import vtc_suites
from fairserve.benchmarks.traces.generate.vtc_suites import (
    VTC_SUITES,
    generate_vtc_suite,
)


def requests(name, **kwargs):
    return Counter(i.user for i in generate_vtc_suite(name, 0, **kwargs).interactions)


@pytest.mark.parametrize("name", VTC_SUITES)
def test_every_suite_has_single_calls_without_sharing(name):
    suite, trace = VTC_SUITES[name], generate_vtc_suite(name, 0)
    assert {i.user for i in trace.interactions} == set(suite.weights)
    assert len({i.interaction_id for i in trace.interactions}) == len(trace)
    arrivals = [i.arrival_s for i in trace.interactions]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] < suite.duration_s
    for interaction in trace.interactions:
        (call,) = interaction.calls
        client = suite.clients[int(interaction.user.removeprefix("client-")) - 1]
        assert (call.prompt_tokens, call.output_tokens) == (
            client.input_tokens,
            client.output_tokens,
        )
        assert (interaction.tenant, interaction.group) == ("vtc", client.group)
        assert not call.blocks
        assert not call.deps


@pytest.mark.parametrize(
    ("name", "per_minute"),
    [
        ("overload", [90, 180]),
        ("backlogged-2", [90, 180]),
        ("backlogged-8", [24] * 3 + [36] * 5),
        ("three-clients", [15, 30, 90]),
        ("on-off-below-share", [15, 120]),
        ("on-off-above-share", [60, 180]),
        ("increase", [30, 66]),
    ],
)
def test_clients_send_at_the_published_rates(name, per_minute):
    counts = requests(name)
    minutes = VTC_SUITES[name].duration_s / 60
    for index, rate in enumerate(per_minute):
        assert counts[f"client-{index + 1}"] == pytest.approx(minutes * rate, abs=1)


def test_poisson_suites_have_the_published_rates_and_sizes():
    for name, sizes in [
        ("short-and-long", [(64, 64), (256, 256)]),
        ("long-output-and-long-input", [(64, 512), (512, 64)]),
    ]:
        counts = requests(name)
        assert counts["client-1"] == pytest.approx(4800, rel=0.05)
        assert counts["client-2"] == pytest.approx(900, rel=0.1)
        clients = VTC_SUITES[name].clients
        assert [(c.input_tokens, c.output_tokens) for c in clients] == sizes
        gaps = np.diff(
            [i.arrival_s for i in generate_vtc_suite(name, 0).interactions if i.user == "client-1"]
        )
        assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, rel=0.1)


def test_off_phases_have_no_arrivals():
    for name in ("on-off-below-share", "on-off-above-share"):
        trace = generate_vtc_suite(name, 0)
        at = [i.arrival_s % 120 for i in trace.interactions if i.user == "client-1"]
        assert max(at) < 60 < 119 < max(i.arrival_s % 120 for i in trace.interactions)


def test_the_shift_has_three_phases():
    trace = generate_vtc_suite("shift", 0)

    def count(user, start_s, end_s):
        inside = (i for i in trace.interactions if start_s <= i.arrival_s < end_s)
        return sum(i.user == user for i in inside)

    assert [count("client-1", s, s + 300) for s in (0, 300, 600)] == [90, 300, 150]
    assert [count("client-2", s, s + 300) for s in (0, 300, 600)] == [600, 300, 450]
    assert count("client-1", 60, 120) == 0


def test_suites_have_their_weights_pools_and_lengths():
    assert list(VTC_SUITES["weighted"].weights.values()) == [1, 2, 3, 4]
    assert len(requests("backlogged-2")) == 2
    assert len(requests("backlogged-8")) == 8
    ablation = {
        (VTC_SUITES[name].pool_tokens, VTC_SUITES[name].clients[0].input_tokens)
        for name in ("pool-35000", "pool-65000", "length-512", "length-768")
    }
    assert ablation == {(35_000, 256), (65_000, 256), (35_000, 512), (35_000, 768)}
    assert {suite.pool_tokens for suite in VTC_SUITES.values()} == {10_000, 35_000, 65_000}


def test_an_additional_client_does_not_change_the_others(monkeypatch):
    """The clients of the first two suites are equal; each has its own random stream."""
    suite = VTC_SUITES["backlogged-8"]
    eight = generate_vtc_suite("backlogged-8", 9)
    two = {"two": replace(suite, clients=suite.clients[:2])}
    monkeypatch.setattr(vtc_suites, "VTC_SUITES", two)
    assert generate_vtc_suite("two", 9).interactions == tuple(
        i for i in eight.interactions if i.user in {"client-1", "client-2"}
    )
