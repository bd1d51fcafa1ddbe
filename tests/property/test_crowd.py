"""A crowd of users with a run or two each, of apps whose prompts differ 15-fold, in virtual time."""

import pytest

from fairserve.benchmarks.reproduce.default.cells import crowd
from fairserve.benchmarks.reproduce.default.headline import simulate
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS


@pytest.mark.parametrize("seed", [0, 1])
def test_long_prompts_of_one_app_do_not_leave_out_the_users_of_another(seed):
    """Matches are compared by the cached share of the prompt: by tokens the longest ones always win."""
    setting = Setting(seeds=1, first_seed=seed, scale=0.5)
    systems = {name: SYSTEMS[name] for name in ("fairserve", "cache-aware", "vtc")}
    found = simulate(setting, {"crowd": crowd(setting)}, systems)
    least = {name: found[f"crowd: {name}"][0]["least_satisfied"] for name in systems}
    work = {name: found[f"crowd: {name}"][0]["tokens_per_s"] for name in systems}
    assert least["fairserve"] >= least["vtc"] - 0.1, least
    assert least["fairserve"] >= least["cache-aware"] + 0.1, least
    assert work["fairserve"] >= 1.05 * work["vtc"], work
