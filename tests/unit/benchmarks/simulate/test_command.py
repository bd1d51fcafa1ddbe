"""Test ``fairserve simulate`` from the command line to its table, its JSON and its plots."""

import json

import pytest

from fairserve.benchmarks.traces.generate.agent_mix import AgentMixOptions, generate_agent_mix
from fairserve.benchmarks.traces.generate.vtc_suites import generate_vtc_suite
from fairserve.engine.simulated.traces.interaction_file import write_trace
from fairserve.platform.server import cli

DISTRIBUTION = {"mean", "p50", "p99"}
OWN_KEYS = {"busy_share", "completed_interactions", "jain_index_extend", "throttling"}
"""Keys beyond those that external tools rely on."""
KEYS = OWN_KEYS | {
    "service_difference",
    "jain_index",
    "throughput_tokens_per_s",
    "ttft_s",
    "interaction_latency_s",
    "queue_delay_s",
    "delayed_users_share",
    "refused_calls",
    "refused_mid_run",
    "aborted_interactions",
    "wasted_tokens",
    "groups",
    "served_users_share",
    "served_interactions_share",
    "prefix_hit_rate",
    "makespan_s",
    "per_client",
}
SYSTEMS = ["fcfs", "vtc", "rpm-5", "fairserve"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Return agent runs of a few users, including one that floods."""
    options = AgentMixOptions(
        users=20, interactions_per_s=2.0, abusive_users=1, duration_s=20.0, other_apps=2
    )
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl.gz"
    write_trace(generate_agent_mix(3, options), path)
    return path


@pytest.fixture(scope="module")
def two_clients(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "two.jsonl"
    write_trace(generate_vtc_suite("overload", 0, until_s=20.0), path)
    return path


def simulate(capsys, *arguments):
    code = cli.main(["simulate", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def written(capsys, path, *arguments):
    simulate(capsys, "--json", path, *arguments)
    return path.read_bytes()


def test_each_system_has_a_row_followed_by_its_groups(capsys, agents):
    out, err = simulate(capsys, "--trace", agents, "--system", *SYSTEMS, "--workers", 2)
    lines = out.splitlines()
    assert lines[0].startswith("agents: ")
    assert lines[0].endswith("a100-llama3-8b, 2 workers")
    rows = [line.split()[0] for line in lines[4:]]
    groups = ["abusive", "well-behaved"]
    assert rows == [name for system in SYSTEMS for name in (system, *groups)]
    assert err.rstrip().endswith(" s")


def test_single_systems_can_be_selected(capsys, agents):
    out, _ = simulate(
        capsys, "--trace", agents, "--system", "fcfs", "--system", "vtc", "--limit", 5
    )
    assert [line.split()[0] for line in out.splitlines()[4:] if line[0] != " "] == ["fcfs", "vtc"]


def test_the_document_has_the_promised_keys(capsys, agents, tmp_path):
    document = json.loads(
        written(capsys, tmp_path / "out.json", "--trace", agents, "--system", "fairserve", "rpm-5")
    )
    assert set(document) == {"trace", "systems"}
    assert document["trace"]["name"] == "agents"
    assert list(document["systems"]) == ["fairserve", "rpm-5"]
    for summary in document["systems"].values():
        assert set(summary) == KEYS
        assert set(summary["service_difference"]) == {"max", "avg", "var"}
        assert set(summary["throughput_tokens_per_s"]) == {"total", "prompt", "decode"}
        for name in ("ttft_s", "interaction_latency_s", "queue_delay_s"):
            assert set(summary[name]) == DISTRIBUTION
        assert set(summary["wasted_tokens"]) == {"throttled", "cancelled", "failed", "expired"}
        assert set(summary["groups"]) == {"abusive", "well-behaved"}
        for group in summary["groups"].values():
            assert set(group) == KEYS - {"groups", "busy_share", "throttling"}
        for client in summary["per_client"].values():
            assert set(client) == {"calls", "refused_calls", "service", "ttft_s"}
        ended = summary["completed_interactions"] + summary["aborted_interactions"]
        assert ended == document["trace"]["interactions"]
        assert 0 < summary["busy_share"] <= 1


def test_output_is_reproducible_on_any_number_of_cores(capsys, agents, tmp_path):
    asked = ["--trace", agents, "--workers", 2, "--system", *SYSTEMS, "--seed", 7, "--users", 5]
    first = written(capsys, tmp_path / "1.json", *asked)
    assert written(capsys, tmp_path / "2.json", *asked, "--jobs", 2) == first
    assert written(capsys, tmp_path / "3.json", *asked, "--seed", 8) != first


def test_an_earlier_document_is_replaced_atomically(capsys, agents, tmp_path):
    out = tmp_path / "out.json"
    out.write_text("earlier")
    written(capsys, out, "--trace", agents, "--limit", 5)
    assert json.loads(out.read_text())["trace"]["interactions"] == 5
    assert list(tmp_path.iterdir()) == [out]


def test_plots_are_written(capsys, two_clients, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    folder = tmp_path / "new" / "plots"
    asked = ["--trace", two_clients, "--system", "fcfs", "vtc", "--model-cost", "a10g-llama2-7b"]
    _, err = simulate(capsys, *asked, "--plot", folder)
    names = {path.name for path in folder.iterdir()}
    each = {f"{kind}-{name}.png" for kind in ("service", "response") for name in ("fcfs", "vtc")}
    assert names == each | {"systems.png", "front.png"}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"wrote {path}" in err


def test_the_loop_of_a_named_model_can_be_changed(capsys, agents, tmp_path):
    asked = ["--trace", agents, "--limit", 40, "--model-cost", "a10g-llama3.2-3b"]
    figures = {
        loop: systems(capsys, tmp_path / f"{loop}.json", *asked, *options)["fairserve"]
        for loop, options in {
            "default": [],
            "prefill-first": ["--loop", "prefill-first"],
            "paged": ["--loop", "paged"],
        }.items()
    }
    assert figures["default"] == figures["prefill-first"] != figures["paged"]
    for each in figures.values():
        assert each["completed_interactions"] == figures["paged"]["completed_interactions"]


def systems(capsys, path, *arguments):
    return json.loads(written(capsys, path, *arguments))["systems"]


GOLDEN = {
    "agents": {
        "fcfs": (15066.5463, 3.504486, 41.235130, 0.407041, 0.550003, 0),
        "vtc": (14505.3337, 4.214389, 42.830521, 0.360274, 0.550003, 0),
        "rpm-5": (14552.7706, 3.833934, 30.903462, 0.392517, 0.593226, 14),
        "fairserve": (16785.4927, 3.190377, 37.012378, 0.463591, 0.550003, 0),
    },
    "two_clients": {
        "fcfs": (844.67959, 28.732047, 54.55323, 0.0, 0.900119, 0),
        "vtc": (844.67959, 29.163955, 54.55323, 0.0, 0.971353, 0),
    },
}
"""Expected tokens a second, p99 TTFT, makespan, hit rate, Jain's index, rejected calls."""


@pytest.mark.parametrize(
    ("trace", "options"),
    [("agents", ["--workers", 2]), ("two_clients", ["--model-cost", "a10g-llama2-7b"])],
)
def test_the_figures_equal_the_recorded_ones(capsys, request, tmp_path, trace, options):
    """VTC serves two overloading clients alike, FCFS by their demand; a limit cuts runs."""
    asked = ["--trace", request.getfixturevalue(trace), "--system", *GOLDEN[trace], *options]
    found = systems(capsys, tmp_path / "out.json", *asked)
    for name, figures in GOLDEN[trace].items():
        seen = (
            found[name]["throughput_tokens_per_s"]["total"],
            found[name]["ttft_s"]["p99"],
            found[name]["makespan_s"],
            found[name]["prefix_hit_rate"],
            found[name]["jain_index"],
            found[name]["refused_calls"],
        )
        assert seen == pytest.approx(figures, rel=1e-5, abs=1e-6), name


def test_options_change_the_systems_they_name(capsys, agents, tmp_path):
    asked = ["--trace", agents, "--system", "vtc", "rpm-5", "--limit", 20]
    plain = systems(capsys, tmp_path / "1.json", *asked)
    only_rpm = systems(capsys, tmp_path / "2.json", *asked, "--set", "rpm-5:throttle.limit=1")
    assert only_rpm["vtc"] == plain["vtc"]
    assert only_rpm["rpm-5"]["refused_calls"] > plain["rpm-5"]["refused_calls"]
    both = systems(capsys, tmp_path / "3.json", *asked, "--set", "levels=user")
    assert set(both) == set(plain)


def test_infinity_is_accepted(capsys, agents):
    simulate(capsys, "--trace", agents, "--limit", 2, "--set", "feeder.interaction_slack=inf")


def test_limits_and_retries_apply(capsys, agents, tmp_path):
    asked = ["--trace", agents, "--system", "rpm-1", "--limit", 20]
    once = systems(capsys, tmp_path / "1.json", *asked)["rpm-1"]
    again = systems(capsys, tmp_path / "2.json", *asked, "--retries", 50)["rpm-1"]
    assert once["aborted_interactions"] > 0
    assert again["aborted_interactions"] == 0


def test_users_arrivals_and_range_of_a_trace_can_be_set(capsys, agents, tmp_path):
    asked = ["--trace", agents, "--users", 4, "--abusive", 1, "--tenants", 2]
    asked += ["--arrivals", "even:2", "--from-s", 2, "--to-s", 6, "--time-scale", 0.5]
    document = json.loads(written(capsys, tmp_path / "out.json", *asked))
    assert document["trace"]["interactions"] == 8
    assert document["trace"]["arrivals_s"] == [0.0, 1.75]
    clients = document["systems"]["fairserve"]["per_client"]
    assert {client.split("/")[0] for client in clients} <= {"tenant-1", "tenant-2"}
    assert {client.split("/")[1] for client in clients} <= {f"user-{n}" for n in range(1, 5)}


def test_several_traces_are_merged(capsys, agents, two_clients, tmp_path):
    asked = ["--trace", agents, two_clients, "--arrivals", "once", "--limit", 1000]
    document = json.loads(written(capsys, tmp_path / "out.json", *asked))
    alone = [
        json.loads(written(capsys, tmp_path / "out.json", "--trace", path))["trace"]
        for path in (agents, two_clients)
    ]
    assert document["trace"]["name"] == "agents+two"
    assert document["trace"]["interactions"] == sum(trace["interactions"] for trace in alone)


def test_a_cost_model_is_read_from_a_file(capsys, two_clients, tmp_path):
    fields = {
        "kv_capacity_tokens": 20_000,
        "prefill_base_s": 0.01,
        "prefill_s_per_token": 0.0001,
        "prefill_s_per_pair": 0,
        "decode_base_s": 0.02,
        "decode_s_per_sequence": 0.0,
        "decode_s_per_held_token": 0.0,
    }
    costs = tmp_path / "mine.json"
    costs.write_text(json.dumps(fields))
    out, _ = simulate(capsys, "--trace", two_clients, "--model-cost", costs)
    assert out.splitlines()[0].endswith("; mine, 1 worker")
