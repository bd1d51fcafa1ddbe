"""Every parameter of every system is described, and accepts its own value."""

import pytest

from fairserve.platform.tenancy.system.parameters import configured_system, describe, system_config
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.scheduling.registry import LOCAL_SCHEDULERS, SYSTEMS

SERVED = [name for name, system in SYSTEMS.items() if not system.simulated_only]


@pytest.mark.parametrize(
    ("system", "local"),
    [*((name, "") for name in SERVED), *(("fairserve", name) for name in LOCAL_SCHEDULERS)],
)
def test_every_parameter_is_described_and_can_be_set_to_its_value(system, local):
    settings = TuningSettings(local_scheduler=local)
    found = describe(settings, system, {})
    assert found
    for parameter in found:
        assert parameter.description, parameter.name
    again = system_config(settings, system, {item.name: item.value for item in found})
    assert describe(settings, system, {})[0] in found
    assert [
        item.value for item in describe(settings, system, {item.name: item.value for item in found})
    ] == [item.value for item in found]
    assert again.name == system


def test_a_system_that_knows_the_future_is_not_served():
    with pytest.raises(ValueError, match="'vtc-oracle' needs the true output lengths"):
        configured_system(TuningSettings(system="vtc-oracle"))
