"""Test the command of the engine benchmark: its arguments, and a tiny run from end to end."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fairserve.benchmarks.bench.engine import command, measurement
from fairserve.benchmarks.bench.engine.figures import FIGURES, OVERHEAD, RATIOS, SIMULATOR
from fairserve.benchmarks.bench.engine.options import EngineBenchOptions
from fairserve.benchmarks.bench.engine.workloads import NAMES
from fairserve.benchmarks.commands import bench
from fairserve.engine.simulated.cost_model import cost_model
from fairserve.engine.torch.bench.runner import RunnerOutcome

HAS_PSUTIL = importlib.util.find_spec("psutil") is not None
TINY = 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "4"], "greater than or equal to 5"),
        (["--shape", "70b"], "'70b' is not one of '5m'"),
        (["--workloads", "b64"], "'b64' is unknown; known: b1"),
        (["--workloads", "none"], "leaves only the fit: give --fit OUT"),
        (["--workloads", "none", "b1", "--fit", "x.json"], "and no other name"),
        (["--json", "/no/such/folder/out.json"], "no folder /no/such/folder"),
        (["--fit", "/no/such/folder/out.json"], "no folder"),
        (["--threads", "0"], "greater than or equal to 1"),
        (["--limit-s", "0"], "allowed: over 0"),
        (["--dtype", "int8"], "'int8' is not one of"),
        (["--rounds", "many"], "valid integer"),
    ],
)
def test_wrong_usage_is_rejected(arguments, message, capsys):
    assert bench(["engine", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_device_is_one_message(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert bench(["engine", "--shape", "5m", "--device", "cuda"]) == 1
    assert "torch finds no GPU" in capsys.readouterr().err


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(["b32"], id="b32"),
        pytest.param(list(NAMES), id="all", marks=pytest.mark.deep),
    ],
)
def measured(request, tmp_path_factory):
    """Return the document, the file of fitted costs, and the workloads of a small run."""
    folder = tmp_path_factory.mktemp("bench")
    out, costs = folder / "out.json", folder / "mine.json"
    options = EngineBenchOptions(
        shape="5m",
        device="cpu",
        json=out,
        fit=costs,
        threads=1,
        workloads=request.param,
        rounds=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gc.collect", lambda: 0)  # called before every round; slow in a large process
        command.bench(options, scale=TINY)
    return json.loads(out.read_text()), costs, request.param


def test_the_document_has_every_figure_of_the_workloads(measured):
    document, _, workloads = measured
    figures = {figure["name"]: figure for figure in document["figures"]}
    compared = {figure.name for name, (figure, _) in RATIOS.items() if name in workloads}
    if not HAS_PSUTIL:
        compared = {name for name in compared if "transformers" not in name}
    assert set(figures) == compared | {OVERHEAD.name, SIMULATOR.name}
    for figure in figures.values():
        least, greatest = figure["spread"]
        assert 0 < least <= figure["value"] <= greatest
        assert all(isinstance(peer, float) for peer in figure["peers"].values())
    for name in compared:
        assert set(figures[name]["peers"]) >= {"fairserve tok/s", "generate tok/s"}
        assert figures[name]["higher_is_better"]
    assert not figures["simulator_error"]["higher_is_better"]


def test_an_unavailable_engine_is_named_with_the_reason(measured):
    document, *_ = measured
    if HAS_PSUTIL:
        assert document["unavailable"] == {}
    else:
        assert list(document["unavailable"]) == ["transformers cb"]
        assert "psutil" in document["unavailable"]["transformers cb"]


def test_the_document_describes_method_and_machine(measured):
    document, _, workloads = measured
    of = "" if workloads == list(NAMES) else f" --workloads {' '.join(workloads)}"
    made_by = f"--shape 5m --device cpu --threads 1{of} --rounds 2 --fit"
    assert document["command"] == f"fairserve bench engine {made_by}"
    assert {"device", "threads", "cores", "processor", "python", "versions"} <= set(
        document["machine"]
    )
    assert document["method"]["rounds"] == 2
    assert document["model"]["name"] == "random-5m"
    assert document["model"]["dtype"] == "float32"
    assert document["machine"]["threads"] == 1
    assert document["machine"]["device"] == "cpu"
    assert document["left_out"] == []


def test_every_workload_has_rates_and_first_tokens_of_every_engine(measured):
    document, _, workloads = measured
    engines = {"fairserve", "generate"} | ({"transformers cb"} if HAS_PSUTIL else set())
    assert set(document["workloads"]) == set(workloads)
    for workload in document["workloads"].values():
        assert set(workload["engines"]) == engines
        for values in workload["engines"].values():
            least, greatest = values["tokens_per_s"]["spread"]
            assert 0 < least <= values["tokens_per_s"]["value"] <= greatest
            assert 0 < values["ttft_s"]["median"] <= values["ttft_s"]["p99"]
            assert values["same_tokens_share"] == 1.0
    assert set(document["memory"]) == engines


def test_the_breakdown_sums_to_the_total(measured):
    document, *_ = measured
    for part in document["breakdown"].values():
        assert sum(part["shares"].values()) == pytest.approx(1)
        assert set(part["parts_ms"]) == {"schedule", "prepare", "forward", "sample", "publish"}
    floor = document["floor"]
    assert floor["decode"]["over_floor"] > 0
    assert floor["prefill"]["of_matrix_rate"] > 0


def test_the_fitted_costs_can_be_simulated(measured):
    document, path, _ = measured
    costs = cost_model(str(path))
    assert costs.loop == "mixed"
    assert costs.decode_s(1, 10, 1) > 0
    fit = document["fit"]
    assert 0 < fit["median_residual"] <= fit["worst_residual"]
    assert fit["passes"] > 20
    assert set(fit["replay"]) == {"at_once", "spread"}
    for values in fit["replay"].values():
        for held in values.values():
            assert held["error"] == pytest.approx(held["simulated"] / held["measured"] - 1)


class Instant:
    """An engine that takes no time and generates only token 0."""

    def __init__(self, name):
        self.name = name

    def run(self, requests):
        outputs = tuple((0,) * request.output_tokens for request in requests)
        return RunnerOutcome(1.0, (0.5,) * len(requests), outputs)

    def close(self):
        pass


def test_no_workload_begins_after_the_time_limit(tmp_path, monkeypatch, capsys):
    names = ("fairserve", "generate")
    makers = {name: lambda name=name: Instant(name) for name in names}
    monkeypatch.setattr(measurement, "_makers", lambda *models: makers)
    monkeypatch.setattr("gc.collect", lambda: 0)
    out = tmp_path / "out.json"
    options = EngineBenchOptions(
        shape="5m", device="cpu", json=out, workloads=["b1", "b8"], rounds=2
    )
    command.bench(replace(options, limit_s=1e-9), scale=TINY)
    document = json.loads(out.read_text())
    assert (document["left_out"], document["figures"]) == (["b1", "b8"], [])
    assert "left out, time was over: b1, b8" in capsys.readouterr().out
    command.bench(options, scale=TINY)
    document = json.loads(out.read_text())
    assert (document["left_out"], set(document["workloads"])) == ([], {"b1", "b8"})
    [figure] = document["figures"]
    assert (figure["name"], figure["value"]) == ("engine_vs_generate_b1", 1.0)
    printed = capsys.readouterr().out
    assert "engine_vs_generate_b1" in printed
    assert "prefill included" in printed


def test_the_guide_names_existing_options(capsys):
    guide = (Path(__file__).parents[5] / "docs" / "guide" / "bench.md").read_text()
    section = guide.split("\n## The engine\n")[1].split("\n## ")[0]
    assert bench(["engine", "--help"]) == 0
    printed = capsys.readouterr().out
    options = set(re.findall(r"--[a-z][a-z-]*", section)) - {"--model-cost"}
    assert len(options) > 5
    assert all(option in printed for option in options)
    assert all(f"`{figure.name}" in section or "_b32" in figure.name for figure in FIGURES)


def test_a_fit_without_scipy_fails_before_measuring(tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec

    def without(name, *more):
        return None if name == "scipy" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert bench(["engine", "--workloads", "none", "--fit", str(tmp_path / "costs.json")]) == 1
    assert "--fit needs scipy: pip install 'fairserve[bench]'" in capsys.readouterr().err
