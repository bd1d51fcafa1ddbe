"""Calls and shares by tenant, and by app of one tenant."""

import pytest
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.tenant_calls import service_of


async def served(world, tenant, app, output):
    grant = await world.submit("c", run=f"{tenant}-{app}", user="ann", tenant=tenant, app=app)
    await world.release(grant, output=output)


async def test_a_tenant_sums_its_apps_and_a_tenant_sees_its_own(world):
    await served(world, "t", "one", 100)
    await served(world, "t", "two", 300)
    await served(world, "other", "app", 50)
    call = CallState(make_call("r", tenant="t", app="two", user="bob"), "r", "", 0.0, world.now_s)
    world.monitoring.app_calls.call_rejected(call, "contract_rpm", world.now_s)
    waits = CallState(make_call("w", tenant="t", app="one", user="bob"), "w", "", world.now_s, 0.0)
    world.monitoring.app_calls.call_accepted(waits, world.now_s)
    world.now_s += 2 * BUCKET_S
    world.monitoring.activity.settle(world.now_s)

    found = await world.monitoring.tenant_calls.read(None)
    assert set(found) == {"t", "other"}
    assert (found["t"].calls, found["t"].rejected, found["t"].waiting) == (4, 1, 1)
    assert found["t"].wait_s == pytest.approx(2 * BUCKET_S, rel=0.1), "it has not ended"
    assert sum(each.share.served for each in found.values()) == pytest.approx(1)
    assert found["t"].share.served > found["other"].share.served
    own = await world.monitoring.tenant_calls.read("t")
    assert set(own) == {"one", "two"}
    assert (own["one"].rejected_share, own["two"].rejected_share) == (0.0, 0.5)
    assert sum(each.share.served for each in own.values()) == pytest.approx(1)

    buckets = world.monitoring.tenant_calls.buckets(3)
    service = service_of(buckets, None, ["t", "absent"])
    of_apps = service_of(buckets, "t", ["one", "two"])
    assert sum(service["t"]) == sum(of_apps["one"]) + sum(of_apps["two"]) > 0
    assert service["absent"] == [0.0, 0.0, 0.0]
