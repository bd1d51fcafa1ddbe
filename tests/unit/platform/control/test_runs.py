"""Views of live runs, and of those that ended last."""

from fairserve.platform.control import runs as module
from fairserve.platform.control.runs import LiveRuns
from fairserve.scheduling.events import InteractionEnded


def ended(run_id, state="complete"):
    return InteractionEnded(
        interaction_id=run_id,
        tenant="t",
        app="app",
        user="u",
        state=state,
        calls=2,
        tokens=30,
        wasted_tokens=7,
        cause="app_failure",
    )


def test_an_ended_run_is_read_as_it_ended():
    runs = LiveRuns()
    runs.opened("app/r", "t", "app", "u", 1.0)
    record = runs.ended(ended("app/r"), 5.0)
    view = runs.view("app/r")
    assert (record.interaction_id, view.interaction_id) == ("r", "app/r")
    assert (view.state, view.opened_at, view.ended_at) == ("complete", 1.0, 5.0)
    assert (view.calls, view.tokens, view.wasted_tokens) == (2, 30, 7)
    assert view.waste_cause == "app_failure"
    assert len(runs) == 0
    assert runs.latest(10, app="app") == []


def test_a_live_run_hides_an_ended_one_of_its_id():
    runs = LiveRuns()
    runs.ended(ended("app/r"), 5.0)
    runs.opened("app/r", "t", "app", "u", 6.0)
    assert runs.view("app/r").state == "open"
    runs.ended(ended("app/r", state="expired"), 7.0)
    assert runs.view("app/r").state == "expired"


def test_ended_runs_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENDED", 2)
    runs = LiveRuns()
    for number in range(3):
        runs.ended(ended(f"app/{number}"), float(number))
    assert runs.view("app/0") is None
    assert [runs.view(f"app/{number}").ended_at for number in (1, 2)] == [1.0, 2.0]


def test_lists_read_the_runs_of_their_owner_only():
    runs = LiveRuns()
    owners = [("t", "app"), ("t", "second"), ("other", "third")]
    for number in range(9):
        tenant, app = owners[number % 3]
        runs.opened(f"{app}/{number}", tenant, app, f"u{number % 2}", float(number))
    of_app = [view.interaction_id for view in runs.latest(9, app="app")]
    assert of_app == ["app/6", "app/3", "app/0"]
    of_tenant = [view.interaction_id for view in runs.latest(3, tenant="t")]
    assert of_tenant == ["second/7", "app/6", "second/4"]
    assert [view.user for view in runs.latest(9, app="app", user="u1")] == ["u1"]
    assert runs.latest(9, tenant="other", app="app") == []
    assert [view.interaction_id for view in runs.latest(1)] == ["third/8"]
    for number in (6, 3, 0):
        runs.ended(ended(f"app/{number}"), 10.0)
    assert runs.latest(9, app="app") == []
    assert (len(runs), len(runs._of_app), len(runs._of_tenant)) == (6, 2, 2)
