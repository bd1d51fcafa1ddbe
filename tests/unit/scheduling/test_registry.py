"""The registries find what exists only to be compared with, and import it only for that."""

import subprocess
import sys

import pytest

from fairserve.benchmarks.policies import registry as laboratory
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.registry import FEEDERS, LOCAL_SCHEDULERS, ROUTERS, SYSTEMS
from fairserve.throttling.registry import THROTTLES, Registry

PUBLIC = {
    *("fcfs", "rpm-7", "lcf", "vtc", "vtc-predict", "vtc-noisy", "vtc-oracle", "vtc-weighted"),
    *("drr", "lpm", "rr-lpm", "preble", "cache-aware", "dlpm", "central-dlpm", "d2lpm", "fs-w"),
    *("fs-wi", "fairserve"),
}
"""Names that tools outside the repository use."""


def test_every_public_system_is_found_with_its_parts():
    for name in PUBLIC:
        system = SYSTEMS[name]
        assert system.name == name
        assert system.throttle in THROTTLES
        assert system.feeder in FEEDERS
        assert system.router in ROUTERS
        assert system.local in LOCAL_SCHEDULERS
    assert PUBLIC - {"rpm-7"} <= set(SYSTEMS)


def test_a_mapping_has_offered_and_compared_names():
    for registry, compared in (
        (SYSTEMS, laboratory.SYSTEMS),
        (FEEDERS, laboratory.FEEDERS),
        (ROUTERS, laboratory.ROUTERS),
        (LOCAL_SCHEDULERS, laboratory.LOCAL_SCHEDULERS),
    ):
        assert compared
        assert not compared.keys() & set(registry.offered)
        assert set(registry) == {*registry.offered, *compared}


def test_an_unknown_name_lists_all_known_ones():
    with pytest.raises(KeyError, match=r"unknown router 'x'; known: round_robin, .*preble"):
        ROUTERS["x"]
    assert "x" not in ROUTERS
    with pytest.raises(KeyError, match="unknown thing 'b'; known: a"):
        Registry("thing", {"a": 1})["b"]


PROGRAM = """
import sys
import fairserve.platform.server.app
from fairserve.platform.server.cli import main
from fairserve.platform.tenancy.system.parameters import configured_system
from fairserve.platform.tenancy.system.settings import TuningSettings
def loaded():
    return {name for name in sys.modules if name.startswith("fairserve.benchmarks")}
for name in ("fairserve", "vtc", "rpm-3"):
    configured_system(TuningSettings(system=name))
print(sorted(loaded()))
configured_system(TuningSettings(system="preble"))
print(sorted({name.split(".")[2] for name in loaded() if name.count(".") > 1}))
"""


def test_a_server_imports_the_laboratory_only_for_a_system_of_it():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["[]", "['policies']"]


@pytest.mark.parametrize(("predict", "noise"), [("oracle", 0.0), ("noisy", 0.5)])
def test_vtc_predicts_with_true_lengths_where_it_is_compared(predict, noise):
    made = LOCAL_SCHEDULERS["vtc"](predict=predict, wq=3.0)
    assert (made.options.noise, made.options.wq) == (noise, 3.0)
    with pytest.raises(ValueError, match="length"):
        made.add(LocalCall("call", "ann", 4, 8))
    assert LOCAL_SCHEDULERS["vtc"](predict="noisy", noise=0.2).options.noise == 0.2
