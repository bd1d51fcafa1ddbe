"""Test FairServe's tables and figures with one seed, and the mix at a quarter of its length."""

import pytest

from fairserve.benchmarks.reproduce.fairserve import mix as fairserve_mix
from fairserve.benchmarks.reproduce.fairserve.figure8 import fairserve_figure8
from fairserve.benchmarks.reproduce.fairserve.figure9 import fairserve_figure9
from fairserve.benchmarks.reproduce.fairserve.table3 import fairserve_table3
from fairserve.benchmarks.reproduce.fairserve.table4 import fairserve_table4, three_apps
from fairserve.benchmarks.reproduce.main import EXPERIMENTS
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.generate.agent_mix import TABLE_4

SYSTEMS = ["fcfs", "rpm-5", "rpm-20", "vtc", "fs-w", "fs-wi", "fairserve"]
VARIANTS = ["fs-wi, charged at selection", "fairserve, any match within the slack"]


pytestmark = pytest.mark.deep  # test_golden.py has short runs of them


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    fairserve_mix.simulated_mix.cache_clear()
    yield Setting(seeds=1, scale=0.25, plots=tmp_path_factory.mktemp("plots"))
    fairserve_mix.simulated_mix.cache_clear()


@pytest.fixture(scope="module")
def table3(setting):
    return fairserve_table3(setting)


@pytest.fixture(scope="module")
def figure8(setting):
    return fairserve_figure8(setting)


@pytest.fixture(scope="module")
def figure9(setting):
    return fairserve_figure9(setting)


@pytest.fixture(scope="module")
def table4():
    return fairserve_table4(Setting(seeds=1))


def of(report, row, column):
    [found] = [each for each in report.rows if each.name == row]
    return found.measured[column].value


def test_the_experiments_are_on_the_command_line():
    named = {name: EXPERIMENTS[name] for name in EXPERIMENTS if name.startswith("fairserve-")}
    assert named == {
        "fairserve-table3": fairserve_table3,
        "fairserve-table4": fairserve_table4,
        "fairserve-figure8": fairserve_figure8,
        "fairserve-figure9": fairserve_figure9,
    }


def test_one_simulation_serves_table_3_and_both_figures(setting, table3, figure8, figure9):
    before = fairserve_mix.simulated_mix.cache_info()
    assert fairserve_mix.simulated_mix(setting)
    after = fairserve_mix.simulated_mix.cache_info()
    assert (before.misses, after.misses) == (1, 1)


def test_every_table_has_the_baselines_and_the_defaults(table3, table4, figure8):
    for report in (table3, table4, figure8):
        assert [row.name for row in report.rows] == SYSTEMS + VARIANTS
        assert {row.name for row in report.rows if row.published} == {
            *("rpm-20", "vtc", "fs-wi"),
            *(() if report is figure8 else ("fs-w",)),
        }
    [rpm] = [row for row in table3.rows if row.name == "rpm-20"]
    assert rpm.published["requests served %"] == 51.52
    assert rpm.published["users served, interactions %"] == 87.64


def test_the_report_states_the_chosen_parameters(table3, table4, figure8, figure9):
    for report in (table3, table4, figure8, figure9):
        for chosen in ("a100-llama3-8b", "one worker", "50 calls a minute", "200 of an app"):
            assert chosen in report.setting, report.name
    for report in (table3, figure8, figure9):
        assert "0.5 interactions/s" in report.setting
        assert "8 abusers who each start 0.5/s" in report.setting


def test_rpm_cuts_runs_and_fairserve_does_not(figure8):
    for rpm in ("rpm-5", "rpm-20"):
        assert of(figure8, rpm, "tokens wasted by throttling") > 10_000
        assert of(figure8, rpm, "aborted runs") > 10 * of(figure8, "fs-wi", "aborted runs")
    for fs in ("fs-wi", "fs-wi, charged at selection"):
        assert of(figure8, fs, "tokens wasted by throttling") == 0


def test_fairserve_throttles_abusers_only_and_a_strict_rpm_does_not(figure8):
    assert of(figure8, "fs-wi", "aborted runs") > 0
    assert of(figure8, "fs-wi", "abusers among throttled %") == 100
    assert of(figure8, "rpm-5", "abusers among throttled %") < 100
    assert of(figure8, "rpm-5", "well-behaved users throttled") > 0
    [nobody] = [row for row in figure8.rows if row.name == "vtc"]
    assert "abusers among throttled %" not in nobody.measured


def test_users_are_delayed_least_where_interactions_are_charged_at_selection(figure8):
    delayed = {row.name: row.measured["users delayed %"].value for row in figure8.rows}
    assert delayed["fs-wi, charged at selection"] < delayed["fs-wi"] < delayed["fcfs"]
    assert delayed["fairserve"] < delayed["fairserve, any match within the slack"]
    assert delayed["vtc"] < delayed["rpm-20"]


def test_stricter_limits_serve_fewer_runs(table3):
    for column in ("requests served %", "interactions served %"):
        assert of(table3, "rpm-5", column) < of(table3, "rpm-20", column) + 10
        assert of(table3, "rpm-20", column) < 60 < of(table3, "fs-wi", column)
        assert of(table3, "vtc", column) == 100


def test_each_app_is_listed_for_each_system(figure9):
    apps = ["app-7", "app-12", "app-14", *(f"other-{number}" for number in range(1, 8))]
    shown = ["rpm-20", "vtc", "fs-wi", "fs-wi, charged at selection", "fairserve"]
    assert [row.name for row in figure9.rows] == [f"{a}, {s}" for a in apps for s in shown]
    assert of(figure9, "app-12, vtc", "TTFT (s)") < of(figure9, "app-12, rpm-20", "TTFT (s)")


def test_three_apps_have_the_published_numbers_of_requests():
    counts = {app.app: 0.0 for app, _ in TABLE_4}
    for seed in range(5):
        for interaction in three_apps(seed, 1.0).interactions:
            counts[interaction.app] += len(interaction.calls) / 5
    for app, requests in TABLE_4:
        assert counts[app.app] == pytest.approx(requests, rel=0.15)


def test_vtc_gives_the_light_app_more_than_fcfs(table4):
    for column in ("app-12: served", "app-12: prompt tok/s"):
        assert of(table4, "vtc", column) > 1.2 * of(table4, "fcfs", column)
    jain = {row.name: row.measured["Jain (typical calls)"].value for row in table4.rows}
    assert jain["fs-wi, charged at selection"] > jain["vtc"]


def test_plots_are_drawn(setting, figure8, figure9):
    for report in (figure8, figure9):
        [name] = report.plots
        assert name == f"{report.name}.png"
        assert (setting.plots / name).read_bytes().startswith(b"\x89PNG")
