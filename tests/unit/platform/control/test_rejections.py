"""The journal entry of a rejection has the inputs of the decision."""

import asyncio
from dataclasses import fields, replace

import orjson
import pytest
from call_records import call_record

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import CallRecord, Progress
from fairserve.platform.control.record import record_of
from fairserve.scheduling import events as ev
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.quotas.quota import Quota

NAMES = {field.name for field in fields(RejectionContext)}


async def test_the_row_of_a_rejection_has_load_and_run_state(make_world):
    world = make_world("rpm-1")
    grant = await world.submit("c1")
    await world.release(grant)
    await world.submit("c2", agent="planner", pool="")
    row = world.journal.row("row-run-c2")
    inputs = row["refusal_inputs"]
    assert inputs.keys() == NAMES
    assert (inputs["system"], inputs["overloaded"]) == ("rpm-1", False)
    assert (inputs["demand_tokens"], inputs["capacity_tokens"], inputs["queued_calls"]) == (
        0,
        2_000_000,
        0,
    )
    assert (inputs["run_calls"], inputs["run_tokens"], inputs["call_tokens"]) == (1, 105, 120)
    assert (inputs["under_way"], inputs["immune"], row["mid_run"]) == (True, True, True)
    assert row["agent"] == "planner"
    assert world.journal.row("row-run-c1")["refusal_inputs"] is None


async def test_a_budget_rejection_has_its_budget(world):
    quota = Quota(max_budget=0, budget_duration="1d")
    world.control.post(ev.ContractChanged("app", "t", "app", quota=quota))
    world.control.post(ev.BudgetSpent(("t", "app", "u"), 7, 1_000_100.0))
    await world.submit()
    row = world.journal.row("row-run-c1")
    assert row["refusal_reason"] == "contract_budget"
    inputs = row["refusal_inputs"]
    budget = {name: inputs[name] for name in inputs.keys() - NAMES}
    assert budget == {"budget_limit": 0, "budget_spent": 7, "budget_held": 0, "call_cost": 0}


async def test_a_full_queue_records_its_length_and_whether_a_run_was_cut(make_world):
    world = make_world(max_queued_calls=1, tenant_share=1, user_share=1)
    grants = [await world.submit(f"c{n}", run=f"r{n}") for n in range(2)]
    waiting = await world.submitted("c8", run="r0")
    for run in ("r1", "new"):
        with pytest.raises(UnavailableError, match="1 calls are waiting already"):
            await world.submit("c9", run=run)
    cut, first = (world.journal.row(f"row-{run}-c9") for run in ("r1", "new"))
    for row in (cut, first):
        assert (row["refusal_limit"], row["refusal_count"]) == (1, 1)
        assert row["refusal_retry_after_s"] == 5.0
        assert row["refusal_inputs"]["queued_calls"] == 1
        assert row["refusal_inputs"]["demand_tokens"] == 3 * 120
        assert row["refusal_inputs"]["immune"] is None, "nobody asked"
    assert (cut["mid_run"], cut["refusal_inputs"]["under_way"]) == (True, True)
    assert (first["mid_run"], first["refusal_inputs"]["under_way"]) == (False, False)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for grant in grants:
        world.control.progress(Progress(grant.call_id, True, TokenUsage(100)))


async def test_a_rejection_does_not_reveal_the_run_of_another_user(make_world):
    world = make_world()
    run = world.control.cell.dispatcher.tracker
    run.open("app/run", ("t", "app", "somebody"), 1.0)
    run.get("app/run").add("app/run/c0", 1, ())
    await world.control.drain(0)
    with pytest.raises(UnavailableError):
        await world.submit("c1")
    row = world.journal.row("row-run-c1")
    assert (row["mid_run"], row["refusal_inputs"]["run_calls"]) == (False, 0)


async def test_a_rejection_while_draining_without_a_model_has_no_load(make_world):
    world = make_world()
    await world.control.drain(0)
    with pytest.raises(UnavailableError) as raised:
        await world.submit("c1", pool="nobody-named-it")
    assert raised.value.headers == {"Retry-After": "5"}
    row = world.journal.row("row-run-c1")
    assert (row["refusal_reason"], row["refusal_inputs"]) == ("draining", None)


RECORD = call_record("c", outcome="refused", parents=[])


def test_versions_read_entries_of_each_other():
    new = replace(RECORD, refusal_inputs={"system": "fairserve", "run_calls": 3})
    data = orjson.loads(orjson.dumps({name: getattr(new, name) for name in new.__slots__}))
    assert record_of(CallRecord, data) == new
    assert record_of(CallRecord, {**data, "of_a_newer_version": 1}) == new
    del data["refusal_inputs"]
    assert record_of(CallRecord, data) == RECORD
