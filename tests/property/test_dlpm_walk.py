"""Test what is particular to DLPM on one worker: its refills, its clients, its rejections."""

import pytest
from reserving_engine import Engine

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions


def test_refill_when_stuck_is_work_conserving_and_the_paper_is_not():
    """One client in credit has a call that does not fit, another in debt has one that would fit."""
    idle = {}
    for stuck in (True, False):
        engine = Engine(DlpmOptions(quantum=100, refill_when_stuck=stuck, max_bypass=0), 1000)
        engine.add("debt", 400, 100)  # deep in debt
        engine.add("debt", 200, 150)
        for _ in range(3):
            engine.step()
        engine.add("big", 600, 300)
        for _ in range(5):
            engine.add("debt", 200, 100)
        steps_idle = 0
        for _ in range(600):
            fits = any(
                engine.held + call.prompt_tokens + call.max_output_tokens <= engine.capacity
                for call in engine.waiting.values()
            )
            admitted = engine.step()
            steps_idle += bool(fits and not admitted)
        idle[stuck] = steps_idle
    assert idle[True] == 0
    assert idle[False] > 0


def test_idle_clients_in_credit_are_evicted():
    engine = Engine(DlpmOptions(quantum=1e6), 10_000)
    for number in range(50):
        engine.add(f"c{number}", 10, 1)
    for _ in range(5):
        engine.step()
    assert not engine.running
    assert len(engine.scheduler._order) == 0


def test_invalid_input_is_rejected():
    scheduler = Dlpm()
    scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="already scheduled"):
        scheduler.add(LocalCall("x", "c", 1, 1))
    with pytest.raises(ValueError, match="weight is 0"):
        scheduler.add(LocalCall("y", "c", 1, 1, weight=0))
    with pytest.raises(KeyError):
        scheduler.finish("nobody")
    with pytest.raises(ValueError, match="quantum is 0"):
        DlpmOptions(quantum=0)
    with pytest.raises(ValueError, match="stuck_advance is -1; allowed: not negative"):
        DlpmOptions(stuck_advance=-1)
