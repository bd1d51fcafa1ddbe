"""The command, and a tiny real run."""

import json

import pytest

from fairserve.benchmarks.bench.gateway.command import GatewayBenchOptions, bench
from fairserve.benchmarks.bench.gateway.gateways import litellm_config, litellm_version
from fairserve.benchmarks.bench.gateway.processes import BenchStartError
from fairserve.benchmarks.commands import bench as bench_command

TINY = {
    "rounds": 1,
    "tokens": (4,),
    "calls": 50,  # CPU time is read in steps of 10 ms: fewer calls may use none
    "open_calls": 3,
    "opening_s": 0.2,
    "rest_s": 0.3,
    "step_ms": 1.0,
}


def test_a_tiny_run_measures_fairserve(tmp_path, capsys):
    path = tmp_path / "out.json"
    options = GatewayBenchOptions(json=path, seconds=0.1)
    bench(options, **TINY)
    document = json.loads(path.read_text())
    assert {"machine", "method", "figures"} <= set(document)
    figures = {figure["name"]: figure for figure in document["figures"]}
    for kind in ("whole", "stream"):
        for quantity in ("cpu_us", "max_rps"):
            figure = figures[f"gateway_embedded_{kind}_4_{quantity}"]
            least, greatest = figure["spread"]
            assert 0 < least <= figure["value"] <= greatest
            assert figure["details"]["failed"] == 0
        for share in ("p50", "p99"):
            assert figures[f"gateway_embedded_{kind}_4_added_{share}_ms"]["unit"] == "ms"
        assert 50 < figures[f"gateway_embedded_{kind}_4_cpu_us"]["value"] < 1e6
    assert 20 < figures["gateway_embedded_idle_mb"]["value"] < 4000
    assert "gateway_embedded_stream_4_cpu_us" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--litellm", "."], "has no bin/litellm; `make litellm` makes .venv-litellm"),
        (["--rounds", "4"], "should be greater than or equal to 5"),
    ],
)
def test_wrong_usage_is_rejected(arguments, message, capsys):
    assert bench_command(["gateway", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_environment_without_litellm_is_an_error(tmp_path):
    with pytest.raises(BenchStartError, match="make litellm"):
        litellm_version(tmp_path)


def test_litellm_has_no_key_in_its_configuration_and_no_database():
    config = litellm_config("http://127.0.0.1:1")
    assert config["general_settings"] == {"master_key": "os.environ/LITELLM_MASTER_KEY"}
    assert "database" not in json.dumps(config)
