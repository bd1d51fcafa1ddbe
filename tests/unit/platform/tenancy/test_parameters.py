"""Test the parameters of systems that operators set: descriptions, values, and what is rejected."""

import pytest

from fairserve.platform.base.removed_names import LABORATORY_PARAMETER
from fairserve.platform.tenancy.system.parameters import (
    PUBLIC,
    configured_system,
    describe,
    parameters_of,
    system_config,
)
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS

SERVED = [name for name, system in SYSTEMS.items() if not system.simulated_only]
SETTINGS = TuningSettings()


@pytest.mark.parametrize("system", SERVED)
def test_every_parameter_is_described_and_can_be_set_to_its_value(system):
    found = describe(SETTINGS, system, {})
    assert found
    for parameter in found:
        assert parameter.description, parameter.name
    again = {item.name: item.value for item in found}
    assert describe(SETTINGS, system, again) == found
    assert system_config(SETTINGS, system, again).name == system


def test_operators_set_about_ten_parameters_of_the_default_system():
    names = [item.name for item in describe(SETTINGS, "fairserve", {})]
    assert len(names) <= 13
    assert set(names) <= set(PUBLIC)
    assert set(PUBLIC) == {item.name for name in SERVED for item in describe(SETTINGS, name, {})}


@pytest.mark.parametrize("system", SERVED)
def test_the_parameters_are_those_of_the_dispatcher(system):
    """The policies that are built to read the parameters have the options of those that serve."""
    config = SYSTEMS[system]
    dispatcher = Dispatcher(config)
    found = parameters_of(config)
    for name, policy in (
        ("throttle", dispatcher.admission.throttle),
        ("feeder", dispatcher.first.feeder),
        ("router", dispatcher.first.router),
    ):
        own = {key: value for key, (value, _) in found.items() if key.startswith(f"{name}.")}
        options = getattr(policy, "options", None)
        assert all(getattr(options, key.partition(".")[2]) == own[key] for key in own), own


@pytest.mark.parametrize("name", ["feed_window", "worker_silence_s", "feeder.locality_slack"])
def test_parameters_of_the_laboratory_are_rejected(name):
    value = parameters_of(SYSTEMS["fairserve"])[name][0]
    with pytest.raises(ValueError, match=f"{name}: {LABORATORY_PARAMETER}"):
        system_config(SETTINGS, "fairserve", {name: value})
    with pytest.raises(ValueError, match=f"{name}: {LABORATORY_PARAMETER}"):
        configured_system(TuningSettings(system_options={name: value}))


def test_settings_are_passed_to_the_system():
    chosen = {"high_watermark": 3.0, "low_watermark": 2.0, "local.quantum": 9.0}
    config = configured_system(TuningSettings(system_options=chosen))
    assert (config.high_watermark, config.low_watermark) == (3, 2)
    assert config.local_options["quantum"] == 9
    assert system_config(TuningSettings(system_options=chosen), "fcfs", {}).high_watermark == 2


def test_memory_for_runs_needs_a_feeder_that_holds_them():
    with pytest.raises(ValueError, match="resident_share needs the feeder wsc"):
        system_config(SETTINGS, "fcfs", {"resident_share": 0.5})


@pytest.mark.parametrize(
    ("system", "problem"),
    [
        ("nothing", "unknown system 'nothing'; known: .*fairserve"),
        ("vtc-oracle", "'vtc-oracle' needs the true output lengths"),
    ],
)
def test_a_system_that_is_not_served_is_rejected(system, problem):
    with pytest.raises(ValueError, match=problem):
        configured_system(TuningSettings(system=system))
