"""The ledger keeps exactly one row per call, correct sums, and the retention."""

import math
import uuid
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import get_args

import databases
import pytest
from call_records import call_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from usage_histories import roll_up_uncommitted

from fairserve.interactions.call import ServiceTier
from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.db import keys
from fairserve.platform.db.identity import ApiKey, Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.reporting.usage.reports import report
from fairserve.platform.reporting.usage.retention import delete_before
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import GROUPS, Sums, UsageQuery
from fairserve.platform.serving.interactions import repository as runs
from fairserve.scheduling.events import CallOutcome

DAY_S = 86_400.0
START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()

CALL = call_record(
    "c1",
    tenant="tn_a",
    app="app_a",
    interaction_id="run",
    accepted_at=START,
    ended_at=START + 1,
    input_tokens=10,
    system_tokens=5,
    cached_tokens=4,
    extend_tokens=11,
    output_tokens=3,
    service=21.0,
)
REFUSED = replace(
    CALL,
    call_id="c2",
    outcome="refused",
    input_tokens=0,
    system_tokens=0,
    cached_tokens=0,
    extend_tokens=0,
    output_tokens=0,
    service=0.0,
    refusal_reason="overloaded_user_limit",
    refusal_scope="user",
    refusal_limit=5,
    refusal_count=6,
    refusal_window_s=60.0,
    refusal_retry_after_s=12.5,
    mid_run=True,
)
RUN = InteractionRecord(
    interaction_id="run",
    tenant="tn_a",
    app="app_a",
    user="u",
    state="complete",
    opened_at=START,
    ended_at=START + 2,
    calls=1,
    tokens=18,
    wasted_tokens=0,
)


@databases.ON_BOTH
def test_calls_of_a_run_are_scoped_to_its_tenant_and_app(sessions):
    """Clients name their runs, so names may repeat in other tenants and, after merges, other apps."""
    others = {
        "tenant": replace(CALL, call_id="c3", tenant="tn_b"),
        "app": replace(CALL, call_id="c4", app="app_b"),
        "run": replace(CALL, call_id="c5", interaction_id="other"),
    }
    with sessions.begin() as session:
        upsert_calls(session, [CALL, REFUSED, *others.values()])
    found = runs.calls(sessions, "tn_a", "app_a", "run")
    assert [row.call_id for row in found] == ["c1"]
    assert [row.call_id for row in runs.calls(sessions, "tn_b", "app_a", "run")] == ["c3"]


@databases.ON_BOTH
def test_every_field_of_a_record_is_kept(sessions):
    full = replace(
        CALL,
        agent="planner",
        queue_delay_s=0.25,
        ttft_s=0.5,
        duration_s=1.0,
        worker="w0",
        served_model="m-v2",
        name="step 2",
        parents=("step 1", "a/b"),
        wasted=True,
        charged=False,
        cost=1_234_567_890_123,
        price_id="price_1",
        error="the worker went away",
        shared_by=3,
    )
    with sessions.begin() as session:
        upsert_calls(session, [full, REFUSED])
        upsert_interactions(session, [RUN])
    with sessions() as session:
        row = session.get(LedgerCall, "c1")
        event = session.get(ThrottlingEvent, "c2")
        run = session.get(LedgerInteraction, ("tn_a", "app_a", "run"))
        assert session.get(ThrottlingEvent, "c1") is None
    names = {"tenant": "tenant_id", "app": "app_id", "user": "user_id", "interaction_id": "id"}
    times = {"accepted_at", "ended_at", "opened_at"}

    def stored(row, field):
        value = getattr(row, field if hasattr(row, field) else names[field])
        if field == "parents":
            return tuple(value)
        return value.timestamp() if field in times else value

    for field in CallRecord.__dataclass_fields__:
        if field != "mid_run" and not field.startswith("refusal_"):
            assert stored(row, field) == getattr(full, field), field
    for field in set(InteractionRecord.__dataclass_fields__) - {"row_id"}:
        assert stored(run, field) == getattr(RUN, field), field
    assert (event.reason, event.scope, event.limit_count, event.count) == (
        "overloaded_user_limit",
        "user",
        5,
        6,
    )
    assert (event.window_s, event.retry_after_s, event.mid_run) == (60.0, 12.5, True)
    assert event.at.timestamp() == START


@databases.ON_BOTH
def test_rewriting_is_idempotent_and_the_last_record_wins(sessions):
    records = [replace(CALL, call_id=f"c{number}") for number in range(1201)]
    for _ in range(2):
        with sessions.begin() as session:
            upsert_calls(session, [*records, REFUSED, REFUSED])
            upsert_interactions(session, [replace(RUN, state="open"), RUN])
    with sessions.begin() as session:
        upsert_calls(session, [replace(CALL, outcome="failed"), replace(CALL, outcome="expired")])
    with sessions() as session:
        assert session.scalar(select(func.count(LedgerCall.call_id))) == 1201
        assert session.scalar(select(func.count(ThrottlingEvent.call_id))) == 1
        assert session.get(LedgerCall, "c1").outcome == "expired"
        assert session.scalars(select(LedgerInteraction.state)).all() == ["complete"]


@databases.ON_POSTGRESQL
@pytest.mark.parametrize("text", ["nul \x00 inside", "half \ud800 pair", "ü" * 5000])
def test_client_texts_never_stop_the_journal(sessions, text):
    with sessions.begin() as session:
        upsert_calls(
            session, [replace(REFUSED, user=text, agent=text, error=text, interaction_id=text)]
        )
        upsert_interactions(
            session,
            [replace(RUN, interaction_id=id, user=text) for id in (text, text + "\x00")],
        )
    with sessions() as session:
        row = session.scalars(select(LedgerCall)).one()
        assert row.user_id[:4] == text[:4]
        assert len(row.error) <= 1000


def test_an_empty_batch_is_accepted(sessions):
    with sessions.begin() as session:
        upsert_calls(session, [])
        upsert_interactions(session, [])


@databases.ON_POSTGRESQL
def test_retention_deletes_old_rows_in_bounded_steps(sessions):
    old = [replace(REFUSED, call_id=f"old{number}") for number in range(5)]
    new = replace(REFUSED, call_id="new", accepted_at=START + 2 * DAY_S)
    hasher = KeyHasher(b"x" * 32)
    with sessions.begin() as session:
        upsert_calls(session, [*old, new])
        upsert_interactions(session, [RUN, replace(RUN, interaction_id="r2", ended_at=START * 2)])
        session.add(Tenant(id="tn_a", name="a", created_at=datetime.now(UTC)))
        session.flush()
        ended = keys.issue(session, hasher, "tenant", tenant_id="tn_a").row
        ended.revoked_at = datetime.fromtimestamp(START, UTC)
        keys.issue(session, hasher, "tenant", tenant_id="tn_a")
    limit = datetime.fromtimestamp(START + DAY_S, UTC)
    deleted = []
    while not deleted or deleted[-1]:
        with sessions.begin() as session:
            deleted.append(delete_before(session, limit, max_rows=3))
    assert deleted == [8, 4, 0]  # three calls and two events each, one run, one key
    with sessions() as session:
        assert session.scalars(select(LedgerCall.call_id)).all() == ["new"]
        assert session.scalars(select(ThrottlingEvent.call_id)).all() == ["new"]
        assert session.scalars(select(LedgerInteraction.id)).all() == ["r2"]
        assert session.scalar(select(func.count(ApiKey.id))) == 1


tokens = st.integers(0, 10**9)
records = st.lists(
    st.builds(
        replace,
        st.just(CALL),
        tenant=st.sampled_from(["tn_a", "tn_b"]),
        app=st.sampled_from(["app_a", "app_B", "app_c"]),
        user=st.sampled_from(["", "Zoe", "anna", "émile", "user/1"]),
        served_model=st.sampled_from(["", "m", "M-2"]),
        service_tier=st.sampled_from(get_args(ServiceTier)),
        outcome=st.sampled_from(get_args(CallOutcome)),
        accepted_at=st.floats(START - DAY_S, START + 2 * DAY_S).map(lambda s: round(s, 3)),
        input_tokens=tokens,
        system_tokens=tokens,
        cached_tokens=tokens,
        extend_tokens=tokens,
        output_tokens=tokens,
        service=st.integers(0, 10**9).map(float),
        wasted=st.booleans(),
        charged=st.booleans(),
    ),
    max_size=25,
)
days = st.none() | st.dates(date(2026, 2, 26), date(2026, 3, 4))


def plain_sums(calls):
    """Return the expected report, computed in plain Python."""
    sums = Sums()
    for call in calls:
        if not call.charged:
            sums.uncharged_calls += 1
            continue
        sums.calls += 1
        setattr(sums, call.outcome, getattr(sums, call.outcome) + 1)
        for name in ("input", "system", "cached", "extend", "output"):
            field = f"{name}_tokens"
            setattr(sums, field, getattr(sums, field) + getattr(call, field))
        sums.input_tokens += call.system_tokens  # reports count whole prompts
        sums.service += call.service
        if call.wasted:
            sums.wasted_tokens += call.input_tokens + call.system_tokens + call.output_tokens
    return sums


def equal_rows(found, expected):
    return math.isclose(found.service, expected.service) and found.model_dump(
        include=Sums.model_fields.keys() - {"service"}
    ) == expected.model_dump(exclude={"service"})


@databases.ON_BOTH
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=records,
    group_by=st.lists(st.sampled_from(GROUPS), unique=True),
    tenant=st.sampled_from([None, "tn_a", "tn_b"]),
    app=st.sampled_from([None, "app_a", "app_B"]),
    user=st.sampled_from([None, "anna", "user/1"]),
    bounds=st.tuples(days, days),
)
def test_usage_equals_the_plain_sum_of_the_ledger(
    sessions, calls, group_by, tenant, app, user, bounds
):
    first, last = sorted(bounds) if None not in bounds else bounds
    calls = [replace(call, call_id=uuid.uuid4().hex) for call in calls]
    query = {"limit": 1000, "group_by": group_by, "user": user, "from": first, "to": last}
    with sessions() as session:  # never committed: every example starts with an empty ledger
        upsert_calls(session, calls)
        roll_up_uncommitted(session)
        found = report(
            session,
            UsageQuery(**{name: value for name, value in query.items() if value is not None}),
            tenant_id=tenant,
            app_id=app,
        )
        paged = (
            [
                row
                for offset in range(found.total)
                for row in report(
                    session,
                    UsageQuery(
                        **{k: v for k, v in query.items() if v is not None}
                        | {"limit": 1, "offset": offset}
                    ),
                    tenant_id=tenant,
                    app_id=app,
                ).items
            ]
            if found.total <= 3
            else found.items
        )
        session.rollback()

    def day_of(call):
        return datetime.fromtimestamp(call.accepted_at, UTC).date()

    def hour_of(call):
        return datetime.fromtimestamp(call.accepted_at // 3600 * 3600, UTC)

    wanted = [
        call
        for call in calls
        if (tenant is None or call.tenant == tenant)
        and (app is None or call.app == app)
        and (user is None or call.user == user)
        and (first is None or day_of(call) >= first)
        and (last is None or day_of(call) <= last)
    ]
    assert equal_rows(found.sums, plain_sums(wanted))
    assert paged == found.items
    groups = list(found.group_by)
    assert set(groups) >= set(group_by)
    if not groups:
        assert len(found.items) == 1
        return
    expected = defaultdict(list)
    for call in wanted:
        values = {
            "tenant": call.tenant,
            "app": call.app,
            "user": call.user,
            "model": call.served_model or call.model,
            "day": day_of(call),
            "hour": hour_of(call),
            "service_tier": call.service_tier,
        }
        expected[tuple(values[group] for group in groups)].append(call)
    assert found.total == len(expected)

    def by_bytes(key):
        return [str(part).encode() for part in key]

    assert [tuple(getattr(row, group) for group in groups) for row in found.items] == sorted(
        expected, key=by_bytes
    )
    for row in found.items:
        assert equal_rows(row, plain_sums(expected[tuple(getattr(row, group) for group in groups)]))


@databases.ON_POSTGRESQL
def test_users_of_two_tenants_are_never_summed_together(sessions):
    with sessions.begin() as session:
        upsert_calls(session, [CALL, replace(CALL, call_id="c9", tenant="tn_b")])
    assert roll_up(sessions)
    with sessions() as session:
        found = report(session, UsageQuery(group_by="user"), tenant_id=None, app_id=None)
    assert found.group_by == ["tenant", "user"]
    assert [(row.tenant, row.user, row.calls) for row in found.items] == [
        ("tn_a", "u", 1),
        ("tn_b", "u", 1),
    ]


@databases.ON_BOTH
def test_days_are_utc_to_the_last_second(sessions):
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    moments = [midnight - timedelta(milliseconds=1), midnight]
    with sessions.begin() as session:
        upsert_calls(
            session,
            [
                replace(CALL, call_id=f"c{number}", accepted_at=moment.timestamp())
                for number, moment in enumerate(moments)
            ],
        )
    assert roll_up(sessions)
    with sessions() as session:
        found = report(session, UsageQuery(group_by="day"), tenant_id=None, app_id=None)
        one = report(session, UsageQuery(to=date(2026, 3, 1)), tenant_id=None, app_id=None)
    assert [(row.day, row.calls) for row in found.items] == [
        (date(2026, 3, 1), 1),
        (date(2026, 3, 2), 1),
    ]
    assert one.sums.calls == 1
