"""Test the parsing of a worker's metrics, in several versions, and of its version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.torch import metrics_text
from fairserve.engine.torch.engine import EngineStats
from fairserve.engine.wire.base import KvEndpoints, WorkerMetrics
from fairserve.engine.wire.foreign_load import ForeignLoad
from fairserve.engine.wire.worker_metrics import at_host_of, kv_endpoints_of, read_metrics
from fairserve.engine.wire.worker_version import version_warning

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/a model"} 3.0
vllm:num_requests_waiting{engine="0",model_name="org/a model"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/a model"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="org/a model"} 1.5e+03
vllm:prefix_cache_queries_created{engine="0",model_name="org/a model"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="org/a model"} 500.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="100"} 1.0
"""


def test_metrics_of_vllm_are_parsed():
    assert read_metrics(VLLM) == WorkerMetrics(3, 2, 0.25, 1500, 500, 3200, 32)


def test_metrics_of_several_engines_are_summed():
    other = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    metrics = read_metrics(VLLM + other)
    assert (metrics.running, metrics.waiting, metrics.kv_used_share) == (6, 4, 0.5)


def test_names_of_older_versions_are_accepted():
    metrics = read_metrics(VLLM.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"))
    assert metrics.kv_used_share == 0.25


@pytest.mark.parametrize("bad", [b"NaN", b"-1", b"", b"many", b"+Inf", b"9" * 400, b"1e308"])
def test_an_invalid_value_is_none(bad):
    metrics = read_metrics(VLLM.replace(b"3.0\n", bad + b"\n").replace(b'"100"', b'"None"'))
    assert (metrics.running, metrics.waiting, metrics.kv_capacity_tokens) == (None, 2, None)
    assert read_metrics(b"<html>") == WorkerMetrics()


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_running{a="b',
        b"vllm:num_requests_running{,,} 1",
        b"vllm:num_requests_running{" + b'a="' * 1000 + b"} 1",
        b"vllm:num_requests_running{\xff} 1",
        b"vllm:num_requests_running " + b"1" * 10_000,
        b"vllm:num_requests_running} 1",
        b"vllm:cache_config_info",
        b"vllm:cache_config_info{",
    ],
)
def test_a_malformed_line_does_not_affect_others(line):
    assert read_metrics(line + b"\n" + VLLM).waiting == 2
    assert read_metrics(VLLM + line) == read_metrics(VLLM)


@given(st.sampled_from([b"vllm:num_requests_running", b"vllm:cache_config_info"]), st.binary())
def test_arbitrary_bytes_raise_no_error(name, rest):
    read_metrics(name + rest)


@given(st.text(alphabet='{}="\\, 1e+N_#\t', max_size=30))
def test_arbitrary_text_in_the_format_raises_no_error(rest):
    read_metrics(b"vllm:num_requests_running" + rest.encode())
    kv_endpoints_of(b"fairserve:kv_events_info" + rest.encode(), "http://h:1")


def test_parsing_is_bounded():
    line = b'vllm:num_requests_running{engine="0"} 1\n'
    read = read_metrics(line * 50_000).running
    assert 1000 < read < 3000


def test_metrics_of_an_embedded_worker_are_parsed():
    stats = EngineStats(running=2, waiting=1, slots=16, kv_used_share=0.5, prefix_queried_tokens=9)
    metrics = read_metrics(metrics_text.render(stats, 'a "model"', 1600))
    assert (metrics.running, metrics.waiting, metrics.kv_used_share) == (2, 1, 0.5)
    assert (metrics.kv_capacity_tokens, metrics.prefix_queried_tokens) == (1600, 9)
    assert metrics.slots == 16


def test_wildcard_endpoints_get_the_address_of_the_worker():
    everywhere = KvEndpoints("tcp://*:5557", "tcp://0.0.0.0:5558")
    at = KvEndpoints("tcp://10.0.0.5:5557", "tcp://10.0.0.5:5558")
    assert at_host_of("http://10.0.0.5:8000", everywhere) == at
    assert at_host_of("http://10.0.0.5:8000", at) == at


@pytest.mark.parametrize(
    "version", [None, "0.32.0", "0.33.0rc1", "v0.33.1", "0.40", "1.0.0", "0.32.1+cpu"]
)
def test_supported_versions_have_no_warning(version):
    assert version_warning(version) is None


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.31.9", "vLLM 0.31.9 is older than 0.32"),
        ("0.6.3.post1", "older"),
        ("dev", "'dev' cannot be read"),
        ("", "cannot be read"),
        ("x" * 10_000, "cannot be read"),
    ],
)
def test_old_or_unknown_versions_have_a_warning(version, message):
    warning = version_warning(version)
    assert message in warning
    assert "vllm_xargs" in warning
    assert len(warning) < 500


def load(running, used, waiting=0):
    return WorkerMetrics(running=running, waiting=waiting, kv_used_share=used)


def test_foreign_load_counts_from_the_second_reading():
    foreign = ForeignLoad()
    assert foreign.read(load(3, 0.5), 1, 100, 1000) == 0, "it may be a race"
    assert foreign.read(load(3, 0.6), 1, 100, 1000) == 400
    assert foreign.read(load(3, 0.6), 1, 100, 1000) == 500
    assert foreign.read(load(1, 0.6), 1, 100, 1000) == 0, "there are only ours"
    assert foreign.read(load(3, 0.6), 1, 100, 1000) == 0


def test_foreign_load_is_never_negative_nor_guessed():
    foreign = ForeignLoad()
    for metrics in (load(3, 0.05), load(3, None), load(None, 0.9), WorkerMetrics()):
        for _ in range(2):
            assert foreign.read(metrics, 1, 100, 1000) == 0


def test_waiting_sequences_count_as_load():
    foreign = ForeignLoad()
    for _ in range(2):
        tokens = foreign.read(load(1, 0.5, waiting=1), 1, 100, 1000)
    assert tokens == 400
