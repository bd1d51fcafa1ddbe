"""A cap on an app's weight divides tokens among siblings, and only protected apps gain."""

import json
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import prompt
from wsc_feeder import call, directory, fill, made, queue, serve, used

from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile, StageProfile
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.fairness import weight_cap
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.throttling.base import Limits

LARGE = {"app": "large", "tokens": prompt((2, 1000)), "output": 100}


@pytest.mark.parametrize(("cap", "calls_per_large"), [(math.inf, 1), (5.0, 2), (1.0, 10)])
def test_an_app_of_large_calls_is_limited_by_the_cap(cap, calls_per_large):
    feeder = made(directory(small=(100, 10), large=(1000, 100)), WscOptions(weight_cap=cap))
    fill(feeder, "s", 200, app="small")
    fill(feeder, "l", 200, **LARGE)
    users = [serve(feeder).user for _ in range(160)]
    assert users.count("s") == pytest.approx(calls_per_large * users.count("l"), abs=10)


def test_a_sibling_counts_for_the_cap_from_its_first_call():
    feeder = made(directory(small=(100, 10), large=(1000, 100)), WscOptions(weight_cap=1.0))
    fill(feeder, "l", 3, **LARGE)
    serve(feeder)
    assert feeder.counter(("t", "l")) == pytest.approx(1)
    fill(feeder, "s", 1, app="small")
    assert [serve(feeder).user for _ in range(3)].count("s") == 1
    assert feeder.counter(("t", "l")) == pytest.approx(1 + 1 + 10)


WEIGHTS = SliceWeights()
REFERENCE = WEIGHTS.typical_call(DEFAULT_PROFILE, 1)


def weight_that_counts(cap, profiles, used_apps, app, stage, window, most):
    """Return the weight by the plain rule; ``used_apps`` are of the tenant's calls, newest last."""
    recent = list(dict.fromkeys(reversed(used_apps[-window:])))[:most]
    others = [WEIGHTS.typical_call(profiles[each], stage) for each in recent if each != app]
    own = WEIGHTS.typical_call(profiles[app], stage)
    return min(own, cap * statistics.median_low(others)) if others else own


@given(st.integers(0, 2**32), st.sampled_from([0.5, 1.0, 3.0, math.inf]))
def test_the_weight_is_the_lower_median_of_the_other_apps_in_use(seed, cap):
    """Profiles change, apps fall out of use, and the state is restored at times.

    A call never costs less than without a cap, so no tenant gains over another.
    """
    rng, known, options = random.Random(seed), directory(), WscOptions(weight_cap=cap)
    profiles, used_apps = {}, {"t0": [], "t1": []}
    feeder = made(known, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_cap, "_IN_USE_CALLS", 6)
        patch.setattr(weight_cap, "MAX_APPS", 3)
        for number in range(60):
            if rng.random() < 0.3 or not profiles:
                stages = tuple(
                    StageProfile(rng.randint(1, 2000), rng.choice([0, 500]), rng.randint(1, 90))
                    for _ in range(rng.randint(1, 3))
                )
                app = f"a{rng.randrange(5)}"
                profiles[app] = AppProfile(stages)
                known.take(AppChanged(app, profiles[app], Limits()))
            if rng.random() < 0.1:
                state = json.loads(json.dumps(feeder.snapshot()))
                feeder = made(known, options)
                feeder.restore(state, {})
            tenant, app = rng.choice(sorted(used_apps)), rng.choice(sorted(profiles))
            each = call(f"c{number}", "u", app=app)
            each.tenant, each.client, each.stage = tenant, (tenant, "u"), rng.randint(1, 4)
            queue(feeder, each)
            charge_factor = feeder.dispatch(each.call_id, 0)
            feeder.finish(each.call_id, used(each))
            used_apps[tenant].append(app)
            counts = weight_that_counts(cap, profiles, used_apps[tenant], app, each.stage, 6, 3)
            assert charge_factor == pytest.approx(REFERENCE / counts)
            assert charge_factor >= REFERENCE / WEIGHTS.typical_call(profiles[app], each.stage) * (
                1 - 1e-9
            )


def test_kept_state_is_bounded():
    """Tables of tenants, apps and stages are bounded, and empty without a cap."""
    known = directory(app=(100, 10))
    for cap, tenants in ((1.0, 3), (math.inf, 0)):
        feeder = made(known, WscOptions(weight_cap=cap))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weight_cap, "MAX_TENANTS", 3)
            patch.setattr(weight_cap, "_MAX_MEDIANS", 10)
            for number in range(400):
                each = call(f"c{number}", "u", app=f"a{number % 70}")
                each.tenant, each.stage = f"t{number // 80}", number % 100
                queue(feeder, each)
                feeder.dispatch(each.call_id, 0)
        kept = feeder._cap._tenants
        assert len(kept) == tenants
        for tenant in kept.values():
            assert len(tenant.apps) <= 64
            assert len(tenant.medians) <= 10


def test_invalid_input_is_rejected():
    with pytest.raises(ValueError, match="weight_cap is 0; allowed: over 0, or inf"):
        WscOptions(weight_cap=0)
