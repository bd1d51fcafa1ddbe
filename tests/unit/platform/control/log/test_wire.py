"""Every event of the log is read as it was written, where possible also by another version."""

import contextlib
import math
import random
from array import array
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_cell_events import RandomCellEvents, outputs_of

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.run_rules import Clue
from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.platform.control import cell_events as ce
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.log.shared_cell import EntryId, SharedCell
from fairserve.platform.control.log.wire import (
    EVENTS,
    EventBatch,
    LogTick,
    UnreadableEntryError,
    UnsharedEventError,
    batch_bytes,
    batch_of,
    event_bytes,
    tick_bytes,
    tick_of,
)
from fairserve.platform.control.messages import CallSource, Cancel, Progress, Release, Submit
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import MAX_AMOUNT, MAX_LIMIT, Quota

KEY = 2**64 - 1
TEXT = "\0 /\n\u2028 \u00fc \u6f22 \U0001f60b\u202e"
USAGE = TokenUsage(2**63 - 1, 0, 1, KEY)
STAGE = StageProfile(0.0, 0.0, 5e-324)
EXTREME = (
    Submit(
        Call(
            *(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, 2**62, 0, 0),
            samples=128,
            agent="",
            parents=(),
            history=(0, KEY),
            answered_prompts=(KEY,),
            tool_results=(1,),
            clues=(Clue("conversation", KEY), Clue("traceparent", scope=0, run_id=TEXT)),
            answer_scopes=(KEY, 0),
            run_rule="metadata",
            single=True,
            final=True,
            salt=TEXT,
            block_keys=array("Q", [0, KEY]),
            stage=64,
            pool=TEXT,
            expected_output_tokens=2**63,
            client=(TEXT,) * 3,
            kinds=frozenset({"", TEXT}),
            workers=frozenset({TEXT}),
            avoid=frozenset({""}),
            run_depth=-1,
            size=3,
            declared=True,
            background=True,
            streamed=False,
            declared_output_tokens=1,
            remaining_tokens=math.inf,
            remaining_calls=-0.0,
        ),
        "",
        TEXT,
        True,
        CallSource(TEXT, TEXT),
    ),
    Submit(Call("", "", "", "", "", "", 0, 0, 0, parents=("",)), ""),
    Progress("", False, TokenUsage(), True),
    Release(TEXT, "expired", USAGE, math.inf, TEXT, (0, KEY), True, True),
    Release("", "completed", USAGE),
    Cancel("", "refused", TEXT),
    ce.RunRestored(RestoredRun("", ("", "", "")), -math.inf),
    ce.RunRestored(
        RestoredRun(
            TEXT,
            (TEXT, "", TEXT),
            (RestoredCall(TEXT, (), KEY), RestoredCall("", (TEXT, ""), 0, "failed", 0.1)),
            True,
            "",
            "complete",
            1e308,
            0.0,
        ),
        5e-324,
    ),
    ce.SystemChanged(TEXT, {}),
    ce.SystemChanged("fairserve", {"a": 0.1, "b": [None, True, "x", {"c": KEY}]}),
    ce.PricesChanged(PriceBook()),
    ce.PricesChanged(
        PriceBook(
            [
                ("*", -math.inf, TokenPrice(0, 0, MAX_AMOUNT, TEXT)),
                (TEXT, 0.1, TokenPrice(1, 2, 3)),
                (TEXT, 0.1, TokenPrice(4, 5, 6, "later")),
            ]
        )
    ),
    ev.AppChanged("", AppProfile((STAGE,)), Limits(), math.inf),
    ev.AppChanged(
        TEXT,
        AppProfile(
            (STAGE, StageProfile(1e7, 1e7, 1e7, 2e7)),
            calls_per_interaction=10_000.0,
            idle_timeout_s=0.1,
            agents={"": (STAGE,), TEXT: ()},
            run_lengths=(1.0, math.inf),
            believed_tokens=0.0,
            seen_stages=1,
            p99_calls=0.1,
            p99_tokens=math.inf,
        ),
        Limits(1, 1_000_000, 5),
        0.1,
        version=2**31,
        read_later=True,
    ),
    ev.TenantChanged(TEXT, 5e-324, "tenant > app > user"),
    ev.TenantChanged(""),
    ev.UserChanged("", TEXT, math.inf, 0, True),
    ev.UserStopped("", TEXT, True),
    ev.ContractChanged("app_user", TEXT, TEXT, TEXT, Quota(), ()),
    ev.ContractChanged(
        "tenant",
        "",
        quota=Quota(1, MAX_LIMIT, 1, MAX_AMOUNT, 0, "finish_runs", "30d"),
        models=(TEXT, ""),
    ),
    ev.BudgetSpent(("", "", ""), -MAX_AMOUNT, -1e308, "user"),
    ev.BudgetSpent((TEXT, TEXT, TEXT), MAX_AMOUNT, math.inf),
    ev.CallMoved(TEXT, ""),
    ev.InteractionOpened("", "", "", "", "", True),
    ev.InteractionClosed(TEXT, True, True),
    ev.WorkerJoined("", 0),
    ev.WorkerJoined(TEXT, 2**63 - 1, TEXT, 0, TEXT, 0),
    ev.WorkerReported("", -(2**63)),
    ev.WorkerDraining(TEXT),
    ev.WorkerUndrained(""),
    ev.WorkerLost(TEXT),
    ev.WorkerCached("", None, ()),
    ev.WorkerCached(TEXT, KEY, (0, KEY)),
    ev.WorkerEvicted(TEXT, ()),
    ev.WorkerEvicted("", (KEY,) * 1000),
    ev.WorkerCacheReset("", False),
)


def written(*events, process="p", number=1):
    return batch_bytes(EventBatch(process, number, [event_bytes(each) for each in events]))


def comparable(value):
    """Return a value in a form that is equal if its parts are; a float may have been a whole number."""
    match value:
        case PriceBook():
            return "prices", comparable(list(value.items()))
        case np.ndarray():
            return value.dtype.name, value.tolist()
        case bool():
            return "bool", value
        case float() | int():
            return value, math.copysign(1.0, value)
        case dict():
            return {key: comparable(each) for key, each in value.items()}
        case array():
            return "keys", value.tolist()
        case tuple() | list():
            return type(value), [comparable(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return type(value), {
            each.name: comparable(getattr(value, each.name)) for each in fields(value)
        }
    return type(value), value


def assert_equal(found, events):
    assert len(found) == len(events)
    for got, event in zip(found, events, strict=True):
        assert comparable(got) == comparable(event)


# --- events of this version ---------------------------------------------------------------------------


@pytest.mark.parametrize("event", EXTREME, ids=lambda event: type(event).__name__)
def test_extreme_values_are_read_as_they_were_written(event):
    process, number, found, _ = batch_of(written(event, process=TEXT, number=2**63))
    assert (process, number) == (TEXT, 2**63)
    assert_equal(found, [event])


def test_the_extreme_values_are_of_every_class():
    assert {type(event) for event in EXTREME} == set(EVENTS)


def of_log(event):
    """Return an event of a history as it can travel."""
    if isinstance(event, Submit) and event.call.block_keys is not None:
        return replace(event, call=replaced_keys(event.call))
    return event


def replaced_keys(call):
    values = {f.name: getattr(call, f.name) for f in fields(Call) if f.init}
    return Call(**values | {"block_keys": array("Q", call.block_keys)})


@given(st.integers(0, 2**32))
def test_the_events_of_a_history_are_read_as_they_were_written(seed):
    cell, source = Cell(SYSTEMS["fairserve"], seed=1), RandomCellEvents(random.Random(seed))
    events = [*source.begin()]
    for event in events:
        cell.apply(event, source.now_s)
    for _ in range(100):
        event = source.next()
        if type(event) in EVENTS:
            events.append(of_log(event))
        source.took(outputs_of(cell, event, source.now_s)[0])
    assert_equal(batch_of(written(*events))[2], events)


def test_a_prompt_travels_as_keys_and_never_as_tokens():
    tokens = np.arange(7_000_000, 7_000_100, dtype=np.uint32)
    call = Call("c", "t", "a", "u", "r", "m", 100, 0, 5, token_ids=tokens, block_keys=[1, KEY])
    [found] = batch_of(written(Submit(call, "row")))[2]
    assert list(found.call.block_keys) == [1, KEY]
    assert len(found.call.token_ids) == 0
    assert tokens.tobytes()[:16] not in written(Submit(call, "row"))


@given(st.text(), st.text(), st.integers(0, 2**32 - 1), st.text(), st.text())
def test_a_tick_is_read_as_it_was_written(speaker, checked, check, stored, full):
    tick = LogTick(speaker, checked, check, stored, full)
    assert tick_of(tick_bytes(tick)) == tick


# --- what cannot be written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ev.WorkerReported("w", 2**64), "WorkerReported cannot be written to the log: .*2\\*\\*64"),
        (ev.WorkerReported("w", -(2**63) - 1), "WorkerReported cannot be written to the log"),
        (ev.WorkerEvicted("w", (1, 2**64)), "WorkerEvicted cannot be written to the log"),
        (ev.BudgetSpent(("t", "a", "u"), 10**30, 0.0), "BudgetSpent cannot be written to the log"),
        (ce.SystemChanged("fairserve", {"hold_s": 2**64}), "SystemChanged cannot be written"),
        (Cancel("\ud83d"), "Cancel cannot be written to the log: .*surrogates not allowed"),
        (ev.Tick(), "Tick is not an event that processes share"),
        (ce.NotStored("c"), "NotStored is not an event that processes share"),
    ]
    + [
        (
            Submit(Call("c", "t", "a", "u", "r", "m", 1, 0, 1, block_keys=[key]), "row"),
            "Submit cannot be written to the log: .*int",
        )
        for key in (2**64, -1)
    ],
)
def test_what_cannot_be_written_is_named(event, why):
    with pytest.raises(UnsharedEventError, match=why):
        event_bytes(event)


# --- other versions, and damage -----------------------------------------------------------------------


def plain(*events):
    return msgspec.msgpack.decode(written(*events))


def test_an_entry_of_a_newer_version_with_more_fields_is_read():
    for event in EXTREME:
        process, number, [body], _ = plain(event)
        body["invented"] = {"deep": [1, None]}
        if isinstance(event, Submit):
            body["call"]["invented"] = [TEXT]
        data = msgspec.msgpack.encode([process, number, [body], False, "and more"])
        assert_equal(batch_of(data)[2], [event])
    tick = LogTick("p", "1-0", 5, "0-0", "full")
    longer = [*msgspec.msgpack.decode(tick_bytes(tick)), {"new": 1}]
    assert tick_of(msgspec.msgpack.encode(longer)) == tick


def test_an_entry_of_an_older_version_with_fewer_fields_has_the_defaults():
    [body] = plain(EXTREME[0])[2]
    call = Call(*(TEXT,) * 6, 2**62, 0, 0)
    older = {
        "type": "Submit",
        "record_id": "",
        "call": {key: body["call"][key] for key in ("type", *(f.name for f in fields(Call)[:9]))},
    }
    assert_equal(batch_of(msgspec.msgpack.encode(["p", 1, [older]]))[2], [Submit(call, "")])
    assert tick_of(msgspec.msgpack.encode(["p", "", 0, ""])) == LogTick("p", "", 0, "")


def damaged():
    good = written(EXTREME[0], EXTREME[2])
    yield from (good[:length] for length in (0, 1, 2, 5, len(good) // 2, len(good) - 1))
    yield good + b"\0"
    yield b"\xc1" + good[1:]
    yield good.replace(b"record_id", b"record_ix")
    [body, _] = plain(EXTREME[0], EXTREME[2])[2]
    for wrong in (
        {"type": "Invented"},
        {"type": "Tick"},
        {},
        [],
        body | {"record_id": 5},
        body | {"call": body["call"] | {"block_keys": b"nine byte"}},
        body | {"call": body["call"] | {"input_tokens": 0.5}},
        body | {"call": body["call"] | {"client": None}},
    ):
        yield msgspec.msgpack.encode(["p", 2, [wrong]])
        yield msgspec.msgpack.encode(["p", 2, [plain(ev.WorkerJoined("w9", 1))[2][0], wrong]])
    limits = plain(ev.AppChanged("a", AppProfile((STAGE,)), Limits(5)))[2][0]
    limits["limits"]["user_rpm"] = 0  # an older version may have allowed it
    yield msgspec.msgpack.encode(["p", 2, [limits]])
    yield msgspec.msgpack.encode([5, 2, []])
    yield msgspec.msgpack.encode(["p", "2", []])


@pytest.mark.parametrize("data", [*damaged()])
def test_an_entry_that_cannot_be_read_changes_nothing(data):
    shared = SharedCell(Cell(SYSTEMS["fairserve"], seed=1))
    seen = []
    shared.batch(
        EntryId(5, 0), written(ev.WorkerJoined("w", 1000)), lambda *each: seen.append(each)
    )
    assert len(seen) == 1
    before = shared.snapshot()
    with pytest.raises(UnreadableEntryError, match="an entry of the log cannot be read: "):
        shared.batch(EntryId(6, 0), data, lambda *each: seen.append(each))
    assert shared.snapshot() == before
    assert len(seen) == 1


@given(st.binary())
def test_any_bytes_are_read_or_are_unreadable(data):
    for read in (batch_of, tick_of):
        with contextlib.suppress(UnreadableEntryError):
            read(data)


@given(st.randoms(use_true_random=False))
def test_flipped_bytes_are_read_or_are_unreadable(rng):
    data = bytearray(written(*EXTREME))
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with contextlib.suppress(UnreadableEntryError):
        batch_of(bytes(data))
