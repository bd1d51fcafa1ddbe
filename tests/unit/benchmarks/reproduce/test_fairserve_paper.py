"""Test the report on the FairServe paper with one seed, and its mix at a quarter of its length."""

from collections import Counter

import pytest

from fairserve.benchmarks.reproduce.fairserve import paper
from fairserve.benchmarks.reproduce.fairserve.paper import fairserve_paper
from fairserve.benchmarks.reproduce.fairserve.workload import mix_trace, three_apps
from fairserve.benchmarks.reproduce.main import EXPERIMENTS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.traces.generate.agent_mix import TABLE_4

SYSTEMS = ["fcfs", "rpm", "vtc", "fs-w", "fs-wi", "fairserve"]


pytestmark = pytest.mark.deep  # test_golden.py has short runs of them


@pytest.fixture(scope="module")
def mix():
    return fairserve_paper(Setting(seeds=1, scale=0.25), ["table3", "figure8", "figure9"])


@pytest.fixture(scope="module")
def table3(mix):
    return mix[0]


@pytest.fixture(scope="module")
def figure8(mix):
    return mix[1]


@pytest.fixture(scope="module")
def figure9(mix):
    return mix[2]


@pytest.fixture(scope="module")
def table4():
    return fairserve_paper(Setting(seeds=1), ["table4"])[0]


def of(report, row, column):
    [found] = [each for each in report.rows if each.name == row]
    return found.measured[column].value


def test_one_command_makes_the_four_parts_of_two_simulations(monkeypatch):
    assert EXPERIMENTS["fairserve-paper"] is fairserve_paper
    simulated = []
    runs = {name: [{"apps": {}}] for name in SYSTEMS}
    monkeypatch.setattr(paper, "simulate_mix", lambda setting: simulated.append("mix") or runs)
    monkeypatch.setattr(
        paper, "simulate_three_apps", lambda setting: simulated.append("apps") or runs
    )
    names = [report.name for report in fairserve_paper(Setting(seeds=1))]
    assert names == [f"fairserve-{part}" for part in ("table3", "table4", "figure8", "figure9")]
    assert simulated == ["mix", "apps"]


def test_every_table_has_the_baselines_and_the_default(table3, table4, figure8):
    for report in (table3, table4, figure8):
        assert [row.name for row in report.rows] == SYSTEMS
        assert {row.name for row in report.rows if row.published} == {
            *("rpm", "vtc", "fs-wi"),
            *(() if report is figure8 else ("fs-w",)),
        }
    [rpm] = [row for row in table3.rows if row.name == "rpm"]
    assert rpm.published["requests served %"] == 51.52
    assert rpm.published["users served, interactions %"] == 87.64


def test_the_report_states_the_chosen_parameters(table3, table4):
    for chosen in ("a100-llama3-8b", "11,000 prompt tokens/s", "8 abusers", "100 prompt and 30 output",
                   "100 calls a minute", "120 of a user and 340 of an app"):  # fmt: skip
        assert chosen in table3.setting
    for chosen in ("269 requests of app-14", "waited 60 s", "80 a minute"):
        assert chosen in table4.setting


def test_abusers_send_tiny_calls_to_three_apps():
    trace = mix_trace(0, 30.0)
    runs = [run for run in trace.interactions if run.group == "abusive"]
    assert len({run.user for run in runs}) == 8
    assert {run.app for run in runs} == {app.app for app, _ in TABLE_4}
    assert {len(run.calls) for run in runs} == {1}
    prompts = [call.input_tokens + call.system_tokens for run in runs for call in run.calls]
    assert sum(prompts) / len(prompts) == pytest.approx(100.0, rel=0.1)


def test_rpm_cuts_runs_and_fairserve_does_not(figure8):
    assert of(figure8, "rpm", "tokens wasted by throttling") > 1_000
    assert of(figure8, "rpm", "aborted interactions") > 0
    for fs in ("fs-wi", "fairserve"):
        assert of(figure8, fs, "tokens wasted by throttling") == 0
        assert of(figure8, fs, "aborted interactions") == 0


def test_rpm_throttles_well_behaved_users(figure8):
    assert of(figure8, "rpm", "abusers among throttled %") < 90
    assert of(figure8, "rpm", "well-behaved users throttled") > 0
    [nobody] = [row for row in figure8.rows if row.name == "vtc"]
    assert "abusers among throttled %" not in nobody.measured


def test_statements_that_the_paper_contradicts_are_listed_apart(table3, figure8, figure9):
    ruled_out = {
        report.name: [check for check in report.checks if check.contradicted_by]
        for report in (table3, figure8, figure9)
    }
    assert {name: len(checks) for name, checks in ruled_out.items()} == {
        "fairserve-table3": 1,
        "fairserve-figure8": 2,
        "fairserve-figure9": 6,
    }
    for report in (table3, figure8, figure9):
        for check in ruled_out[report.name]:
            for shown in (report.markdown(), report.text()):
                [line] = [each for each in shown.splitlines() if check.claim in each]
                assert check.contradicted_by in line
                assert check.seen in line


def test_rpm_serves_about_half_of_the_requests_and_most_interactions(table3):
    assert 40 < of(table3, "rpm", "requests served %") < 60
    assert 70 < of(table3, "rpm", "interactions served %") < 100
    assert of(table3, "vtc", "requests served %") == 100


def test_each_app_is_compared_with_rpm_and_vtc(figure9):
    apps = ["app-12", "app-14", "app-7", *(f"other-{number}" for number in range(1, 8))]
    assert [row.name for row in figure9.rows] == apps
    assert len(figure9.columns) == 8
    assert of(figure9, "app-14", "throughput: fs-wi / rpm") > 1


@pytest.mark.parametrize("seed", range(3))
def test_three_apps_have_the_published_numbers_of_requests(seed):
    counts = Counter()
    for run in three_apps(seed, 1.0).interactions:
        counts[run.app] += len(run.calls)
    for app, requests in TABLE_4:
        assert requests <= counts[app.app] < requests + 100


@pytest.mark.parametrize("seed", range(3))
def test_the_load_of_the_well_behaved_is_the_same_under_every_seed(seed):
    runs = [run for run in mix_trace(seed, 150.0).interactions if run.group != "abusive"]
    calls = [call for run in runs for call in run.calls]
    prompts = sum(call.input_tokens + call.system_tokens for call in calls)
    assert runs[-1].arrival_s == pytest.approx(150.0)
    assert prompts / 150.0 == pytest.approx(11_000.0, rel=0.1)


def test_vtc_gives_the_light_app_more_than_fcfs(table4):
    assert of(table4, "vtc", "app-12: served") > 1.2 * of(table4, "fcfs", "app-12: served")
    assert of(table4, "fairserve", "tokens wasted") < of(table4, "vtc", "tokens wasted")
