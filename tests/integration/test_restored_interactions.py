"""Open interactions are stored with the ledger's rows, and restored with their calls."""

import databases
from call_records import call_record

from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.platform.control.messages import InteractionRecord, OpenInteractionRecord, Rows
from fairserve.platform.serving.interactions import restoring
from fairserve.platform.serving.interactions.restoring import stored_runs

AT = 1_800_000_000.0


def opened(run, at=AT, **more):
    return OpenInteractionRecord(run, "t", "app", "ann", at, **more)


def ended(run, at=AT + 50):
    fields = {"state": "complete", "calls": 1, "tokens": 1, "wasted_tokens": 0}
    return InteractionRecord(run, "t", "app", "ann", opened_at=AT, ended_at=at, **fields)


def call(run, name, at, took_s=1.0, **more):
    values = {"tenant": "t", "app": "app", "user": "ann", "outcome": "completed", **more}
    values |= {"input_tokens": 3, "system_tokens": 0, "output_tokens": 2}
    return call_record(
        f"{run} {name}",
        interaction_id=run,
        name=name,
        accepted_at=at,
        ended_at=at + took_s,
        **values,
    )


def restored(sessions):
    return {each.key[2]: each for page in stored_runs(sessions) for each in page}


@databases.ON_BOTH
def test_a_run_is_restored_with_its_recent_calls_and_ages(management):
    write, sessions = management.platform.storage.rows.write, management.state.session_factory
    old = call("r", "of an earlier run of this id", AT - 9)
    one, two = call("r", "one", AT), call("r", "two/2", AT + 5, took_s=3.0, parents=("one",))
    three = call("r", "three", AT + 6, parents=("one",), outcome="failed")
    refused = call("r", "four", AT + 7, took_s=0.0, outcome="refused")
    theirs = call("r", "theirs", AT + 1, app="other")
    last = call("s", "last", AT + 20)
    write(Rows([old, one, two, three, refused, theirs, last], (), [opened("r", sink="end")]))
    (found,) = restored(sessions).values()
    assert (found.key, found.opened_at) == (("t", "app", "r"), AT)
    assert found.run == RestoredRun(
        "app/r",
        ("t", "app", "ann"),
        (
            RestoredCall("app/r/one", (), 5, "completed", 19.0),
            RestoredCall("app/r/two%2F2", ("app/r/one",), 5, "completed", 12.0),
            RestoredCall("app/r/three", ("app/r/one",), 5, "failed", 13.0),
        ),
        sink="app/r/end",
        opened_age_s=20.0,
        refused_age_s=13.0,
    )
    assert (found.run.idle_age_s, found.run.last_call.call_id) == (12.0, "app/r/two%2F2")


def test_rows_follow_the_runs_and_pages_skip_none(management, monkeypatch):
    monkeypatch.setattr(restoring, "PAGE_ROWS", 2)
    write, sessions = management.platform.storage.rows.write, management.state.session_factory
    write(Rows((), (), [opened(f"r{number}") for number in range(5)]))
    assert list(restored(sessions)) == ["r0", "r1", "r2", "r3", "r4"]
    write(Rows((), [ended("r1"), ended("r3"), ended("r4")], [opened("r4", closing="cancelled")]))
    assert {run: each.run.closing for run, each in restored(sessions).items()} == {
        "r0": None,
        "r2": None,
        "r4": "cancelled",
    }
