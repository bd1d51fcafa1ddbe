"""A newer version takes a cell over from processes that have calls: each is granted once, by answers.

All processes run this code; the number that they are given makes them of two versions.
"""

import asyncio
from dataclasses import replace

import pytest
from log_members import PREFIX, suspended, traffic
from until import DEADLINE_S, turn, until

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import NotFoundError, UnavailableError
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallMessage,
    SystemChanged,
)
from fairserve.platform.control.log import order as log_order
from fairserve.platform.control.log import speaker as log_speaker
from fairserve.platform.control.log.redis_log import cancel
from fairserve.platform.control.log.succession import CellMismatchError
from fairserve.platform.control.messages import Cancel, RejectCall, Release
from fairserve.scheduling import events as ev


async def one_worker(members):
    """Return a control and an API process of version 1, with a worker for one call at a time."""
    control, api = await members.add(speaks=True), await members.add()
    await control.order.applied(ev.WorkerJoined("w", 130, model="m"))
    await members.settled()
    return control, api


async def upgraded(members, *, silent=1):
    """Return control and API processes of version 2, after they have the cell."""
    made = [await members.add(version=2, speaks=True, start=False)]
    made += [await members.add(version=2, start=False) for _ in range(silent)]
    async with asyncio.TaskGroup() as group:
        for member in made:
            group.create_task(member.start())
    await until(lambda: made[0].order.speaks and not made[0].order.differs)
    return made


def ended(member, record_id):
    """Return whether a process knows that a call has ended."""
    return any(each.step in ("ended", "rejected") for each in steps(member, record_id))


def steps(member, record_id):
    return [
        each
        for each in member.outputs
        if isinstance(each, CallChange) and each.call.record_id == record_id
    ]


def answers(member, record_id):
    return [
        each
        for each in member.outputs
        if isinstance(each, CallAnswer) and each.record_id == record_id
    ]


def release(record_id):
    return Release(f"app/{record_id}", "completed", TokenUsage(100, 0, 0, 5))


async def test_calls_of_the_former_version_continue_in_their_order(members):
    control, old = await one_worker(members)
    before = [f"before-{number}" for number in range(3)]
    for name in before:
        await old.order.applied(old.submitted(name))
    assert [len(old.granted(name)) for name in before] == [1, 0, 0]
    speaker, new = await upgraded(members)
    await old.order.applied(old.submitted("after"))
    await new.order.applied(new.submitted("new"))
    for name in [*before, "after"]:
        await until(lambda name=name: old.granted(name))
        [grant] = old.granted(name)
        assert (grant.call_id, grant.worker_id) == (f"app/{name}", "w")
        assert not new.granted("new")
        old.order.put(release(name))
        await until(lambda name=name: ended(old, name))
    await until(lambda: new.granted("new"))
    assert all(len(old.granted(name)) == 1 for name in [*before, "after"])
    assert speaker.rows("closed") == dict.fromkeys([*before, "after"], 1)
    assert not [*old.cell.calls]
    await until(lambda: not speaker.order.shared_cell.followed)
    assert not control.order.accepts
    assert old.order.accepts
    assert not old.failures + control.failures


async def test_an_answer_reaches_the_process_that_put_the_event(members):
    _, old = await one_worker(members)
    run = {"interaction_id": "app/run", "single": False}
    await old.order.applied(old.submitted("granted"))
    for name in ("in a run", "waiting"):
        event = old.submitted(name)
        await old.order.applied(replace(event, call=replace(event.call, **run)))
    speaker, new = await upgraded(members)
    found = await asyncio.gather(
        old.order.applied(SystemChanged("invented", {})),
        old.order.applied(SystemChanged("fairserve", {"hold_s": -1.0})),
        old.order.applied(ev.InteractionClosed("app/none", cancel=True)),
        old.order.applied(ev.TenantChanged("t", 2.0)),
        return_exceptions=True,
    )
    assert [type(each) for each in found] == [KeyError, ValueError, NotFoundError, type(None)]
    assert "invented" in str(found[0])
    assert found[2].code == "interaction_not_found"

    again = replace(release("granted"), retry_on_another_worker=True)
    old.order.put(again)
    await until(lambda: len(old.granted("granted")) == 2)
    assert [each.step for each in steps(old, "granted")].count("requeued") == 1
    old.order.put(release("granted"))
    await until(lambda: old.granted("in a run"))
    new.order.put(ev.InteractionClosed("app/run", cancel=True))
    await until(lambda: ended(old, "waiting"))
    [stop] = [each for each in old.outputs if isinstance(each, CallMessage)][-1:]
    assert stop == CallMessage("in a run", Cancel("app/in a run", reason=stop.message.reason))
    [error] = [each.answer for each in answers(old, "waiting")]
    assert (type(error), error.code) == (UnavailableError, "interaction_cancelled")
    old.order.put(replace(release("in a run"), outcome="cancelled"))
    await until(lambda: ended(old, "in a run"))

    await old.order.applied(old.submitted("blocked"))
    await speaker.order.applied(ev.UserChanged("t", "u", blocked=True))
    await old.order.applied(old.submitted("rejected"))
    [rejection] = [each.answer for each in answers(old, "rejected")]
    assert (type(rejection), rejection.decision.reason) == (RejectCall, "user_blocked")
    assert ended(old, "rejected")


async def test_a_call_without_a_user_joins_the_run_of_one(members):
    """A server cannot know the run of a call that another one has accepted just now."""
    _, old = await one_worker(members)
    speaker, new = await upgraded(members)
    run = {"interaction_id": "app/run", "single": False}
    for number, (member, user) in enumerate([(new, "ann"), (old, "app"), (new, "app")]):
        event = member.submitted(f"call {number}")
        call = replace(event.call, user=user, **run)
        await member.order.applied(replace(event, call=call))
    await members.settled([speaker, new])
    assert [each.owner[2] for each in speaker.cell.calls] == ["ann"] * 3


async def test_an_event_after_the_end_of_a_log_is_kept_in_the_next_epoch(members, monkeypatch):
    control, api = await one_worker(members)
    await api.order.applied(api.submitted("parent"))
    epoch = control.order.epoch
    with monkeypatch.context() as patch:
        patch.setattr(control.speaker, "_hand_over", turn)  # it takes a while
        await control.log.seal(control.speaker._token, epoch)
        api.order.put(release("parent"))
        kept = asyncio.create_task(api.order.kept())
        await until(lambda: api.order.shared_cell.sealed)
        last = members.redis.xlen(f"{PREFIX}:log:{epoch}")
        await until(lambda: members.redis.xlen(f"{PREFIX}:log:{epoch}") > last + 2)
        assert not kept.done()
    await kept
    await control.order.applied(control.submitted("child"))
    assert ended(control, "parent")
    assert control.order.epoch > epoch
    # What a process writes that has not seen the next epoch yet is as late.
    assert await api.log.append(epoch, b"") == "closed"


async def test_each_call_counts_once_whatever_fails_in_an_upgrade(members):
    control, old = await members.with_workers()
    await members.add(speaks=True)  # it may not decide again
    others = [await members.add() for _ in range(2)]
    carried = asyncio.create_task(traffic([old, *others], 40))
    await until(lambda: len(control.rows("closed")) > 5)
    speaker, new = await upgraded(members)
    second = await members.add(version=2, speaks=True)
    carried_too = asyncio.create_task(traffic([new], 20))
    await until(lambda: len(speaker.rows("closed")) > 5)
    await speaker.stop_speaking()  # it answers no more, and reads on
    await until(lambda: second.order.speaks)
    for _ in range(3):
        rows = len(second.rows("closed"))
        await until(lambda rows=rows: len(second.rows("closed")) > rows + 3 or carried.done())
        members.redis.client_kill_filter(_type="normal", skipme=True)
    names = await carried + await carried_too
    # The last ends of the older processes may be unsent, as they connect again.
    sent = ev.TenantChanged("no tenant")
    await asyncio.gather(*(each.order.applied(sent) for each in (old, *others)))
    await members.equal([speaker, second, new])
    for kind in ("accepted", "closed"):
        # A process that continues with the stored state of another lacks the rows before that.
        rows = control.rows(kind) + (speaker.rows(kind) | second.rows(kind))
        assert {name: rows[name] for name in {*names, *rows} if rows[name] != 1} == {}
    for member in (old, *others):
        own = [name for name in names if name.startswith(f"{member.name}-")]
        assert [len(member.granted(name)) for name in own] == [1] * len(own)
        assert not member.failures


async def test_the_former_version_continues_if_the_newer_one_ends(members):
    control, old = await one_worker(members)
    await old.order.applied(old.submitted("a"))
    epoch = control.order.epoch
    members.redis.set(f"{PREFIX}:successor", 2, px=500)
    await until(lambda: old.order.shared_cell.sealed is not None)
    waits = asyncio.create_task(old.order.applied(old.submitted("b")))
    await until(lambda: old.order.epoch > epoch)
    await waits
    assert old.order.shared_cell.sealed is None
    old.order.put(release("a"))
    await until(lambda: old.granted("b"))
    await members.equal()
    assert control.rows("accepted") == {"a": 1, "b": 1}


async def test_a_newer_version_takes_over_where_none_hands_over(members):
    control, old = await one_worker(members)
    for name in ("a", "b"):
        await old.order.applied(old.submitted(name))
    await control.stop_speaking(leave=True)
    speaker, _ = await upgraded(members)
    old.order.put(release("a"))
    await until(lambda: old.granted("b"))
    old.order.put(release("b"))
    await until(lambda: ended(old, "b"))
    assert speaker.rows("closed") == {"a": 1, "b": 1}


async def test_a_process_that_missed_answers_gets_another_grant(members, monkeypatch):
    _, old = await one_worker(members)
    for name in ("a", "b"):
        await old.order.applied(old.submitted(name))
    speaker, new = await upgraded(members)
    async with suspended(old):
        new.order.put(release("a"))
        await until(lambda: new.cell.calls.running("app/b") and not len(speaker.speaker._book))
        last = new.last
        monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 0.0)
        async with asyncio.timeout(DEADLINE_S):
            while await new.log.where(new.order.epoch, last) != "trimmed":
                await turn()
        monkeypatch.setattr(log_speaker, "SNAPSHOT_S", 3600.0)
        attachment = old.order._attachment
        monkeypatch.setattr(log_order, "SUSPENDED_S", 0.0)
    await until(lambda: old.order._attachment > attachment)
    monkeypatch.setattr(log_order, "SUSPENDED_S", 3600.0)
    await until(lambda: old.granted("b"))
    old.order.put(release("b"))
    await until(lambda: ended(old, "b"))


async def test_an_epoch_is_begun_once_though_it_is_read_late(members):
    control, _ = await one_worker(members)
    await control.stop_speaking(leave=True)
    late = await members.add(version=2, speaks=True, start=False)
    await late.order.attach()
    late.order.last_speaker = late.order.process  # as if it had read its own tick, and then nothing
    await late.speaker._turn()
    begun = await late.log.base()
    assert begun.epoch > control.order.epoch
    await late.speaker._turn()
    assert await late.log.base() == begun


async def test_versions_that_cannot_take_part_wait_or_are_rejected(members):
    _, old = await one_worker(members)
    late = await members.add(version=3, start=False, speaks=True)
    with pytest.raises(CellMismatchError, match="install a release with version 2 first"):
        await late.start()
    await upgraded(members)
    again = await members.add(start=False)
    waiting = asyncio.create_task(again.start())
    await old.order.applied(old.submitted("a"))
    await until(lambda: old.granted("a"))
    assert not waiting.done()
    await cancel(waiting)
