"""Test the demand of a preview: recorded runs, and drawn ones in place of rejected runs."""

import random

import pytest
from preview_world import EPOCH, LEAD_S, MODEL, History, traffic

from fairserve.platform.reporting.traffic.lines import Pseudonyms
from fairserve.platform.reporting.traffic.segments import load_salt, read_recording
from fairserve.platform.tuning.preview.demand import demand_of
from fairserve.platform.tuning.preview.input import RejectedCall
from fairserve.scheduling.registry import SYSTEMS

RUNS = 40


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return history without rejections."""
    return History(tmp_path_factory.mktemp("recording"), traffic(RUNS), system="fcfs")


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Return history with rejected runs, some of them rejected midway."""
    return History(tmp_path_factory.mktemp("recording"), traffic(200), system=SYSTEMS["rpm-20"])


def demand(history, *, refused=(), served=None, **more):
    recorded, block_tokens, damaged = read_recording(history.folder, 0.0)
    assert not damaged
    values = {
        "model": MODEL,
        "kv_capacity_tokens": 8000,
        "lead_at": EPOCH - LEAD_S,
        "from_at": EPOCH,
        "until_at": EPOCH + 1000,
        "max_calls": 5000,
        "seed": 0,
    }
    return demand_of(
        recorded,
        block_tokens,
        history.served if served is None else served,
        refused,
        Pseudonyms(load_salt(history.folder)),
        **{**values, **more},
    )


def rejection(run="r", at_s=10.0, *, app="app", user="v", reason="overloaded_user_limit", **more):
    row = RejectedCall("t", app, user, MODEL, run, EPOCH + at_s, reason, False)
    return row._replace(**more)


def times(found):
    """Return tenant, app, user, arrival and calls of each run."""
    return [
        (
            run.user,
            pytest.approx(run.arrival_s - LEAD_S, abs=1e-5),
            [(c.prompt_tokens, c.system_tokens, c.output_tokens) for c in run.calls],
        )
        for run in found
    ]


def test_served_runs_are_replayed_unchanged(history):
    found = demand(history)
    expected = [
        (
            run.user,
            run.arrival_s,
            [(c.prompt_tokens, c.system_tokens, c.output_tokens) for c in run.calls],
        )
        for run in history.trace.interactions
    ]
    assert times(found.trace.interactions) == expected
    assert not found.drawn
    assert found.left_out == {}
    assert (found.retries, found.came_earlier, found.cut, found.from_at) == (0, 0, False, EPOCH)


def test_a_rejected_run_is_replayed_as_a_run_of_its_app(history):
    found = demand(history, refused=[rejection()])
    [run] = [r for r in found.trace.interactions if r.interaction_id in found.drawn]
    assert (run.tenant, run.app, run.user, run.arrival_s) == ("t", "app", "v", LEAD_S + 10)
    sizes = [(c.prompt_tokens, c.output_tokens) for c in run.calls]
    alike = [
        each
        for each in found.trace.interactions
        if each is not run and [(c.prompt_tokens, c.output_tokens) for c in each.calls] == sizes
    ]
    assert alike
    own = {number for call in run.calls for number in call.block_ids}
    of_others = {
        number
        for each in found.trace.interactions
        if each is not run
        for call in each.calls
        for number in call.block_ids
    }
    shared = {1, 2, 3, 4}  # the system prompt, whose ids the export assigns first
    assert own & of_others == shared
    for call in run.calls:  # each prompt extends the previous one
        assert list(call.block_ids)[:4] == [1, 2, 3, 4]
    assert len(list(run.calls[-1].block_ids)) == run.calls[-1].prompt_tokens // 16


def test_attempts_of_a_run_are_merged_and_determine_the_retries(history):
    tries = [rejection("r", at_s) for at_s in (30.0, 10.0, 20.0)]
    found = demand(history, refused=[*tries, rejection("s", 40.0), rejection("s", 50.0)])
    runs = [r for r in found.trace.interactions if r.interaction_id in found.drawn]
    assert [run.arrival_s - LEAD_S for run in runs] == [10.0, 40.0]
    assert found.retries == 1  # round((3 + 2) / 2) - 1


def test_each_drawn_run_has_blocks_of_its_own_even_if_a_run_is_drawn_twice(history):
    found = demand(history, refused=[rejection(str(number)) for number in range(RUNS + 1)])
    drawn = [run for run in found.trace.interactions if run.interaction_id in found.drawn]
    assert len(drawn) == RUNS + 1
    seen = set()
    for run in drawn:
        own = {number for call in run.calls for number in call.block_ids} - {1, 2, 3, 4}
        assert own
        assert not own & seen
        seen |= own


def test_a_rejected_run_of_an_app_without_an_accepted_one_is_omitted_and_reported(history):
    found = demand(history, refused=[rejection(app="new")])
    assert (len(found.trace), found.drawn) == (RUNS, frozenset())
    assert found.left_out == {"refused_runs_of_unseen_apps": 1}


def test_a_run_accepted_on_retry_arrives_at_its_first_rejection(history):
    run = history.trace.interactions[5]
    first_at = run.arrival_s - 3.0
    tries = [
        rejection(run.interaction_id, at_s, user=run.user)
        for at_s in (first_at, run.arrival_s - 1.0)
    ]
    found = demand(history, refused=tries)
    assert (found.came_earlier, found.retries, len(found.drawn)) == (1, 2, 0)
    assert len(found.trace) == RUNS
    arrivals = [each.arrival_s - LEAD_S for each in found.trace.interactions]
    assert min(abs(at_s - first_at) for at_s in arrivals) < 1e-4
    assert min(abs(at_s - run.arrival_s) for at_s in arrivals) > 1e-3


def test_a_run_rejected_midway_is_replaced_by_a_whole_one(limited):
    accepted = {row.run for row in limited.served}
    broken = {row.run for row in limited.refused if row.mid_run}
    assert broken
    never = {row.run for row in limited.refused if not row.mid_run} - accepted
    found = demand(limited, refused=limited.refused)
    assert len(found.drawn) == len(broken) + len(never)
    planned = {run.interaction_id: run for run in limited.trace.interactions}
    assert len(found.trace) == len(planned)
    truth = sum(len(run.calls) for run in planned.values())
    assert found.trace.calls == pytest.approx(truth, rel=0.1)
    arrivals = {
        (run.user, round(run.arrival_s - LEAD_S, 3))
        for run in found.trace.interactions
        if run.interaction_id in found.drawn
    }
    assert {(planned[run].user, round(planned[run].arrival_s, 3)) for run in broken} <= arrivals


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model": "other"}, "refusals_of_other_models"),
        ({"reason": "contract_budget"}, "refusals_by_other_reasons"),
        ({"reason": "draining"}, "refusals_by_other_reasons"),
        ({"mid_run": True}, "refusals_mid_run"),
    ],
)
def test_unrepeatable_rejections_are_omitted_and_reported(history, more, why):
    found = demand(history, refused=[rejection(**more)])
    assert len(found.trace) == RUNS
    assert found.left_out == {why: 1}


def test_runs_of_other_models_are_omitted(history):
    run = history.served[0].run
    served = [row._replace(model="other") if row.run == run else row for row in history.served]
    found = demand(history, served=served)
    assert found.left_out == {"runs_of_other_models": 1}
    assert len(found.trace) == RUNS - 1


def test_a_recording_without_rows_is_replayed_under_pseudonyms(history):
    found = demand(history, served=[])
    assert len(found.trace) == RUNS
    assert all(run.user.startswith("user-") for run in found.trace.interactions)


def test_runs_too_large_for_a_worker_are_omitted(history):
    largest = max(
        call.prompt_tokens + call.output_tokens
        for run in history.trace.interactions
        for call in run.calls
    )
    found = demand(history, kv_capacity_tokens=largest)
    assert found.left_out == {"runs_too_large": 1}


def test_the_newest_runs_are_kept_above_the_call_bound(history):
    found = demand(history, max_calls=20)
    assert found.cut
    assert 16 < found.trace.calls <= 20
    whole = demand(history).trace.interactions
    assert [r.interaction_id for r in found.trace.interactions] == [
        r.interaction_id for r in whole[-len(found.trace) :]
    ]
    first = found.trace.interactions[0]
    assert found.from_at == EPOCH - LEAD_S + first.arrival_s


def test_runs_before_the_window_are_omitted(history):
    found = demand(history, lead_at=EPOCH + 100, from_at=EPOCH + 160)
    expected = [run for run in history.trace.interactions if run.arrival_s >= 100]
    assert len(found.trace) == len(expected) < RUNS


def test_the_order_of_the_rows_does_not_matter(limited):
    rng = random.Random(1)
    served, refused = list(limited.served), list(limited.refused)
    rng.shuffle(served)
    rng.shuffle(refused)
    one = demand(limited, refused=limited.refused)
    assert demand(limited, served=served, refused=refused) == one
