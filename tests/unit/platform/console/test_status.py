"""The status line names the worst cause, and since when there is one."""

import pytest

from fairserve.platform.console.status import ProcessState, StatusLine


def line(state=None, at=0.0):
    """Return a status line with its state and its clock, both of which a test changes."""
    world = {"state": state or ProcessState(), "at": at}
    return StatusLine(lambda: world["state"], lambda: world["at"]), world


@pytest.mark.parametrize(
    ("state", "level", "why"),
    [
        (ProcessState(), "healthy", []),
        (ProcessState(draining=True, rejection="x"), "down", ["draining"]),
        (
            ProcessState(rejection="no control process speaks"),
            "down",
            ["no control process speaks"],
        ),
        (ProcessState(database_away_since=1.0, ledger_waits_since=2.0), "degraded", ["database"]),
        (ProcessState(ledger_waits_since=2.0), "degraded", ["no rows"]),
        (
            ProcessState(database_away_since=1.0, models=0),
            "down",
            ["No worker is ready", "database"],
        ),
        (ProcessState(models=1, models_without_worker=["a"]), "down", ["No worker is ready"]),
        (ProcessState(models=2, models_without_worker=["a"]), "degraded", ["No worker serves a."]),
        (
            ProcessState(database_away_since=1.0, rejection="x"),
            "down",
            ["rejected: x.", "database"],
        ),
    ],
)
def test_the_worst_cause_is_named_first(state, level, why):
    found = line(state)[0].now()
    assert found.level == level
    assert len(found.causes) == len(why)
    for cause, text in zip(found.causes, why, strict=True):
        assert text in cause.why


def test_a_cause_begins_when_it_is_first_seen_unless_its_time_is_known():
    status, world = line(at=100.0)
    world |= {"state": ProcessState(draining=True), "at": 110.0}
    status.sampled(None)
    world["at"] = 120.0
    assert status.now().since == 110.0
    world["state"] = ProcessState(database_away_since=90.0)
    assert status.now().since == 90.0
    world |= {"state": ProcessState(), "at": 130.0}
    assert (status.now().level, status.now().since) == ("healthy", 130.0)
    assert status.now().started == 100.0
