"""The cell is deterministic, restores equal to the last bit, and ends each call exactly once."""

import gc
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_cell_events import SYSTEMS as CONFIGURATIONS
from random_cell_events import RandomCellEvents, outputs_of, plain

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control import cell_events as ce
from fairserve.platform.control import free_rows
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.messages import Cancel, Grant, Release, Submit
from fairserve.platform.control.options import ControlOptions
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS

OPTIONS = ControlOptions(max_queue_wait_s=45.0, max_queued_calls=12, lease_s=60.0)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    """Make calls and runs that used nothing share rows soon."""
    monkeypatch.setattr(free_rows, "MOST_ROWS", 3)
    monkeypatch.setattr(free_rows, "MAX_SHARED", 4)


def made(name, parameters):
    return Cell(SYSTEMS[name], OPTIONS, seed=1, parameters=parameters)


def stored(cell):
    return json.loads(json.dumps(cell.snapshot(), allow_nan=False))


def driven(cell, source, events):
    """Yield each event with the outputs of the cell."""
    for event in source.begin():
        cell.apply(event, source.now_s)
    for _ in range(events):
        event = source.next()
        outputs, error = outputs_of(cell, event, source.now_s)
        source.took(outputs)
        yield event, outputs, error


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_a_restored_cell_answers_like_its_original(name, parameters, seed, before):
    original, source = made(name, parameters), RandomCellEvents(random.Random(seed))
    for _ in driven(original, source, before):
        pass
    restored = made("vtc-weighted", {})
    restored.restore(stored(original))
    assert stored(restored) == stored(original)
    for _ in range(60):
        event = source.next()
        outputs, error = outputs_of(original, event, source.now_s)
        found, found_error = outputs_of(restored, event, source.now_s)
        assert ([*map(plain, found)], found_error) == ([*map(plain, outputs)], error), event
        source.took(outputs)
    assert stored(restored) == stored(original)


@pytest.mark.parametrize(("name", "parameters"), CONFIGURATIONS)
@given(st.integers(0, 2**32))
def test_each_call_has_one_row_and_one_end_and_each_wait_one_answer(name, parameters, seed):
    cell, source = made(name, parameters), RandomCellEvents(random.Random(seed))
    history = [*driven(cell, source, 150)]
    history.append((ce.Draining(ends=True), cell.apply(ce.Draining(ends=True), source.now_s), None))
    assert len(cell.calls) == cell.calls.waiting == cell.calls.granted == 0
    assert not any(view.live_calls for view in cell.runs.latest(10_000))

    accepted, answered, waiting, closed = set(), set(), set(), set()
    for event, outputs, _ in history:
        left = isinstance(event, Cancel | ce.NotStored)  # the client does not wait
        for output in outputs:
            match output:
                case ce.JournalRow("accepted", key):
                    assert key not in accepted
                    accepted.add(key)
                    waiting.add(key)
                case ce.JournalRow("closed", key, data):
                    # Only an attempt on which no worker has worked is written again.
                    assert key not in closed or not data["charged"]
                    closed.add(key)
                case ce.CallAnswer(key, answer):
                    assert key in waiting or (key not in accepted and not isinstance(answer, Grant))
                    answered.add(key)
                    waiting.discard(key)
                case ce.CallChange(live, "requeued"):
                    waiting.add(live.record_id)
                case ce.CallChange(live, "ended" | "dropped" as step):
                    assert left or live.record_id not in waiting
                    waiting.discard(live.record_id)
                    assert (live.record_id in closed) == (step == "ended")
        if isinstance(event, Submit):
            assert event.record_id in accepted | answered
    assert not waiting


def cyclic_garbage():
    """Return objects of the product that only a collection finds; a test process has others, too."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [
            each
            for each in gc.garbage
            if str(getattr(each, "__module__", "")).startswith("fairserve.")
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_calls_of_many_clients_leave_no_cyclic_garbage():
    cell = made("fairserve", {})
    cell.apply(ev.WorkerJoined("w", 10**9), 0.0)
    gc.collect()
    gc.disable()
    try:
        for number in range(3000):  # idle clients are forgotten beyond 1024
            call = Call(
                call_id=f"a/{number}/c",
                interaction_id=f"a/{number}",
                input_tokens=10,
                system_tokens=0,
                max_output_tokens=5,
                tenant=f"t{number % 7}",
                app="a",
                user=f"u{number}",
                model="m",
                single=True,
            )
            cell.apply(Submit(call, f"row{number}"), number / 100)
            done = Release(call.call_id, "completed", TokenUsage(10, 0, 0, 5))
            cell.apply(done, number / 100)
        assert not len(cell.calls)
        assert not cyclic_garbage()
    finally:
        gc.enable()
