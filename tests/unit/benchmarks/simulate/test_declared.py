"""Test ``fairserve simulate`` with profiles that are wrongly declared and learned."""

import json

import pytest

from fairserve.benchmarks.simulate.declared import larger, wrong_profiles
from fairserve.benchmarks.traces.generate.agent_mix import AgentMixOptions, generate_agent_mix
from fairserve.engine.simulated.traces.interaction_file import write_trace
from fairserve.platform.server import cli

OPTIONS = AgentMixOptions(users=10, interactions_per_s=4.0, duration_s=30.0, other_apps=1)


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl.gz"
    write_trace(generate_agent_mix(3, OPTIONS), path)
    return path


def simulated(tmp_path, trace, *arguments):
    out = tmp_path / "out.json"
    code = cli.main(["simulate", "--trace", str(trace), "--json", str(out), *arguments])
    assert code == 0
    return json.loads(out.read_text())["systems"]


def test_profiles_exist_only_with_learning(tmp_path, agents):
    plain = simulated(tmp_path, agents)["fairserve"]
    assert "profiles" not in plain
    systems = simulated(tmp_path, agents, "--system", "fairserve", "vtc", "--learn-profiles")
    assert {"profiles"} == systems["fairserve"].keys() - plain.keys()
    assert all(found["profiles"] for found in systems.values())


def test_an_excessive_declaration_is_corrected_by_learning(tmp_path, agents):
    app = sorted(simulated(tmp_path, agents, "--learn-profiles")["fairserve"]["profiles"])[0]
    options = ("--declared", f"{app}=50", "--learn-profiles")
    found = simulated(tmp_path, agents, *options)["fairserve"]["profiles"][app]
    assert found[0]["source"] == "declared"
    assert found[-1]["source"] != "declared"
    assert found[-1]["tokens_by_stage"][0] < found[0]["tokens_by_stage"][0] / 20


def test_the_declaration_is_the_truth_times_the_factor():
    trace = generate_agent_mix(3, OPTIONS)
    app = trace.interactions[0].app
    once, ten = wrong_profiles(trace, [f"{app}=1"]), wrong_profiles(trace, [f"{app}=10"])
    assert ten[app].stage(1).input_tokens == pytest.approx(10 * once[app].stage(1).input_tokens)
    calls = once[app].calls_per_interaction
    assert ten[app].calls_per_interaction == pytest.approx(10 * calls)
    assert larger(once[app], 1e-6).calls_per_interaction == 1.0
    assert wrong_profiles(trace, []) == {}


@pytest.mark.parametrize(
    "declared", ["nobody=2", "2", "{app}=", "{app}=-1", "{app}=nan", "{app}=1e9"]
)
def test_an_invalid_factor_is_rejected_in_one_line(capsys, agents, declared):
    app = generate_agent_mix(3, OPTIONS).interactions[0].app
    code = cli.main(["simulate", "--trace", str(agents), "--declared", declared.format(app=app)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert "--declared" in line
