"""Residents survive a snapshot, report each change, and lose their places for a lease."""

import json

from virtual_cluster import make_call

from fairserve.scheduling.residents.held_prefixes import Prefix
from fairserve.scheduling.residents.residents import Footprint, Residents


def resident(*runs):
    """Return residents at ``w``, each with one call of 100 tokens, and the calls by run."""
    found, calls = Residents(1.0, 16), {}
    found.join("w", 1000)
    for run in runs:
        calls[run] = make_call(f"call-{run}", run=run)
        found.dispatch(calls[run], "w", Footprint(Prefix((), 0, 100, 100), 20, 2.0), 50.0)
    return found, calls


def test_a_snapshot_restores_what_each_worker_holds():
    found, calls = resident("r", "s", "t")
    found.leave(calls["s"], 3.0)
    found.revoke("t", 4.0, overran=False)
    other = Residents(1.0, 16)
    other.restore(json.loads(json.dumps(found.snapshot(5.0))), 5.0)
    assert other.held_tokens("w") == found.held_tokens("w") > 200
    assert [each.run_id for each in other.at("w")] == [each.run_id for each in found.at("w")]
    assert other.snapshot(9.0) == found.snapshot(9.0)


def test_a_run_without_its_place_is_known_until_its_lease_is_over():
    found, calls = resident("r")
    found.leave(calls["r"], 10.0)
    found.revoke("r", 12.0, overran=False)
    end_s = 10.0 + found.lease_s(calls["r"].app)
    known = [found.was_revoked("r", now_s, waits=False) for now_s in (12.0, end_s, end_s + 0.1)]
    assert known == [True, True, False]
    assert found.was_revoked("r", end_s + 0.1, waits=True)
    assert not found.was_revoked("s", 12.0, waits=True)


def test_each_change_of_the_memory_is_counted():
    found, calls = resident("r")
    seen = {found.changes}
    for change in (
        lambda: found.leave(calls["r"], 1.0),
        lambda: found.join("x", 500),
        lambda: found.lose("x"),
        lambda: found.end("r"),
    ):
        change()
        assert found.changes not in seen
        seen.add(found.changes)
