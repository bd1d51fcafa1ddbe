"""Rejections keep the state they were decided on, through journal and ledger, and over HTTP."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from databases import ON_BOTH, ON_POSTGRESQL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rejected_calls import START, STATE, rejected_call

from fairserve.platform.control.call_state import MAX_WHOLE
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.control.record import plain_of
from fairserve.platform.db.ledger import ThrottlingEvent
from fairserve.platform.tuning.schemas import EventOut
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Budget, Decision


@pytest.fixture
def journaled(tmp_path, sessions):
    """Return a function that writes records through a journal and the ledger's thread."""

    class Sink:
        def write(self, rows):
            with sessions.begin() as session:
                upsert_calls(session, rows.calls)

        def blames_rows(self, error):
            return False

    journal = Journal(tmp_path / "journal")
    journal.open()
    ledger = Ledger(journal, Sink())
    ledger.start()

    def write(*records):
        for record in records:
            journal.append("closed", record.call_id, plain_of(record))
        assert ledger.flush(20)

    yield write
    ledger.close(5)
    journal.close()


whole = st.integers(0, 2**62)
numbers = st.floats(0.001, 1e12)
maybe = st.one_of(st.none(), st.booleans())
states = st.none() | st.builds(
    RejectionContext,
    system=st.sampled_from(["fairserve", "rpm-20"]),
    overloaded=st.booleans(),
    demand_tokens=whole,
    capacity_tokens=whole,
    high_watermark=numbers,
    low_watermark=numbers,
    queued_calls=st.integers(0, 2**31 - 1),
    call_tokens=whole,
    run_calls=st.integers(0, 2**31 - 1),
    run_tokens=whole,
    expected_calls=numbers,
    expected_tokens=numbers,
    immunity_factor=numbers,
    under_way=st.booleans(),
    immune=maybe,
)
budgets = st.none() | st.builds(Budget, whole, whole, whole, whole)


@ON_POSTGRESQL
@settings(
    max_examples=settings.default.max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cases=st.lists(st.tuples(states, budgets, st.booleans()), min_size=1, max_size=8))
def test_the_context_of_a_rejection_passes_journal_and_ledger(sessions, journaled, cases):
    records = []
    for number, (state, budget, mid_run) in enumerate(cases):
        decision = Decision(False, "contract_budget", "app", budget=budget)
        records.append(rejected_call(f"c{number}", decision, state, mid_run=mid_run))
    journaled(*records)
    with sessions() as session:
        for record, (state, budget, mid_run) in zip(records, cases, strict=True):
            row = session.get(ThrottlingEvent, record.call_id)
            assert row.mid_run == mid_run
            for field in fields(RejectionContext):
                expected = None if state is None else getattr(state, field.name)
                assert getattr(row, field.name) == expected, field.name
            found = (row.budget_limit, row.budget_spent, row.budget_held, row.call_cost)
            assert found == (budget or (None,) * 4)


@ON_BOTH
def test_an_amount_beyond_the_column_does_not_stop_the_ledger(sessions, journaled):
    decision = Decision(False, "contract_budget", "app", budget=Budget(1, 2, 3, 2**64))
    journaled(rejected_call("c", decision, None))
    with sessions() as session:
        assert session.get(ThrottlingEvent, "c").call_cost == MAX_WHOLE


def test_a_rejection_has_its_inputs_and_explanation(management):
    with management.state.session_factory.begin() as session:
        upsert_calls(session, [rejected_call("c1")])
    found = management.call(management.admin_key, "GET", "/admin/throttling/events/c1")
    (listed,) = management.call(management.admin_key, "GET", "/admin/throttling/events")["items"]
    assert found.items() >= listed.items()
    assert listed.keys() == EventOut.model_fields.keys()
    assert found.keys() - listed.keys() == {"explanation", "currency", "throttling_version"}
    for field in fields(RejectionContext):
        assert found[field.name] == getattr(STATE, field.name)
    assert (found["model"], found["served_model"], found["agent"]) == (
        "small",
        "small-v2",
        "planner",
    )
    assert (found["throttling_version"], found["currency"]) == (0, "USD")
    assert found["explanation"] == [
        "The limit of 20 calls within 60 s for this user was reached: the call was number 21, including"
        " rejected calls.",
        "Its model was overloaded: the demand was 236 % of its KV capacity (2,360 of 1,000 tokens, 7"
        " calls in its queue); an overload begins at 200 % and ends at 120 %, and until then"
        " new runs of clients over a limit are rejected.",
        "Its run was not in progress: the call would have been its first.",
        "The client may retry after 12 s.",
    ]
    error = management.call(management.admin_key, "GET", "/admin/throttling/events/c2", status=404)
    assert error["error"]["message"] == "there is no such rejection"


def test_money_is_shown_in_the_currency(management):
    budget = Budget(5_000_000_000, 4_750_000_000, 0, 300_000_001)
    decision = Decision(False, "contract_budget", "app", retry_after_s=43_200.0, budget=budget)
    with management.state.session_factory.begin() as session:
        upsert_calls(session, [rejected_call("c1", decision)])
    found = management.call(management.admin_key, "GET", "/admin/throttling/events/c1")
    assert (found["budget_limit"], found["budget_spent"], found["budget_held"]) == (5.0, 4.75, 0.0)
    assert found["call_cost"] == 0.300000001
    assert found["explanation"][0] == (
        "The budget of this app is 5.00 USD: 4.75 USD was spent, 0.00 USD was reserved for running"
        " calls, and this call could cost up to 0.300000001 USD."
    )
    assert found["explanation"][-1] == (
        "The next period begins at 2026-03-02 00:00 UTC, the time of Retry-After in the response."
    )


def test_a_rejection_of_an_older_server_has_nulls(management):
    with management.state.session_factory.begin() as session:
        session.add(
            ThrottlingEvent(
                call_id="old",
                at=START,
                tenant_id="tn_a",
                app_id="app_a",
                user_id="u",
                interaction_id="run",
                reason="rpm_user_limit",
                scope="user",
                limit_count=2,
                count=3,
                window_s=60.0,
                retry_after_s=0.5,
                mid_run=True,
            )
        )
    found = management.call(management.admin_key, "GET", "/admin/throttling/events/old")
    names = {*(field.name for field in fields(RejectionContext)), "model", "agent", "budget_limit"}
    assert {found[name] for name in names} == {None}
    assert found["explanation"] == [
        "The limit of 2 calls within 60 s for this user was reached: the call would have been accepted"
        " call number 3.",
        "Its run was in progress.",
        "The client may retry after 1 s.",
    ]


def test_a_rejection_names_the_settings_version_of_its_time(management):
    def version(call_id):
        found = management.call(management.admin_key, "GET", f"/admin/throttling/events/{call_id}")
        return found["throttling_version"]

    later = datetime.now(UTC) + timedelta(minutes=1)
    after_s = (later - START).total_seconds()
    with management.state.session_factory.begin() as session:
        upsert_calls(session, [rejected_call("before"), rejected_call("after", at_s=after_s)])
    for system in ("fcfs", "fairserve"):
        management.call(management.admin_key, "PUT", "/admin/throttling", {"system": system})
    assert (version("before"), version("after")) == (0, 2)


@pytest.fixture
def three(management):
    """Return two tenants, the first with two apps, and a rejection of each app."""
    one, other = management.new_tenant("one"), management.new_tenant("other")
    apps = [
        management.new_app(one, "first"),
        management.new_app(one, "second"),
        management.new_app(other),
    ]
    with management.state.session_factory.begin() as session:
        upsert_calls(
            session,
            [
                rejected_call(f"c{n}", tenant=app["tenant_id"], app=app["id"], at_s=n)
                for n, app in enumerate(apps)
            ],
        )
    return one, other, apps


@ON_POSTGRESQL
def test_tenants_and_apps_read_only_their_own_rejections(management, three):
    one, other, apps = three
    path = "/v1/throttling/events"

    def listed(key, **query):
        found = management.call(key, "GET", path, **query)
        assert found["total"] == len(found["items"])
        return [item["call_id"] for item in found["items"]]

    assert listed(one["api_key"]) == ["c1", "c0"]
    assert listed(one["api_key"], app=apps[0]["id"]) == ["c0"]
    assert listed(other["api_key"]) == ["c2"]
    assert listed(apps[0]["api_key"]) == ["c0"]
    assert listed(apps[0]["api_key"], tenant=one["id"]) == ["c0"]
    assert listed(management.admin_key, tenant=one["id"]) == ["c1", "c0"]
    assert listed(management.admin_key, tenant="tn_none") == []
    management.call(management.admin_key, "GET", path, status=400)
    for key in (one["api_key"], apps[0]["api_key"]):
        management.call(key, "GET", path, status=404, app=apps[2]["id"])
        management.call(key, "GET", path, status=404, tenant=other["id"])
    management.call(apps[0]["api_key"], "GET", path, status=404, app=apps[1]["id"])

    readers = {
        "c0": [one["api_key"], apps[0]["api_key"]],
        "c1": [one["api_key"], apps[1]["api_key"]],
        "c2": [other["api_key"], apps[2]["api_key"]],
    }
    keys = [one["api_key"], other["api_key"], *(app["api_key"] for app in apps)]
    missing = management.call(one["api_key"], "GET", f"{path}/none", status=404)
    for call_id, allowed in readers.items():
        whole = management.call(management.admin_key, "GET", f"/admin/throttling/events/{call_id}")
        for key in keys:
            if key in allowed:
                assert management.call(key, "GET", f"{path}/{call_id}") == whole
            else:
                assert management.call(key, "GET", f"{path}/{call_id}", status=404) == missing
        management.call(management.admin_key, "GET", f"{path}/{call_id}", status=400)
    management.call(management.admin_key, "GET", f"{path}/c2", status=404, tenant=one["id"])
    management.call(management.admin_key, "GET", f"{path}/c0", tenant=one["id"])


def test_every_filter_of_the_lists(management):
    parallel = Decision(False, "contract_parallel", "tenant", 1, None, 2, 1.0)
    with management.state.session_factory.begin() as session:
        upsert_calls(
            session,
            [
                rejected_call("c0"),
                rejected_call("c1", at_s=1, user="v", interaction_id="my run/1"),
                rejected_call("c2", parallel, at_s=2, mid_run=True),
                rejected_call("c3", at_s=3, tenant="tn_b", app="app_b"),
            ],
        )

    def listed(**query):
        found = management.call(management.admin_key, "GET", "/admin/throttling/events", **query)
        return [item["call_id"] for item in found["items"]], found["total"]

    def at(seconds):
        return (START + timedelta(seconds=seconds)).isoformat()

    assert listed(interaction_id="my run/1") == (["c1"], 1)
    assert listed(scope="tenant") == (["c2"], 1)
    assert listed(mid_run="true") == (["c2"], 1)
    assert listed(mid_run="false") == (["c3", "c1", "c0"], 3)
    assert listed(since=at(1), until=at(3)) == (["c2", "c1"], 2)
    assert listed(until=at(2), limit=1, offset=1) == (["c0"], 2)
    assert listed(tenant="tn_a", app="app_a", user="v", reason="overloaded_user_limit") == (
        ["c1"],
        1,
    )


def test_simultaneous_rejections_have_a_stable_order(management):
    with management.state.session_factory.begin() as session:
        upsert_calls(session, [rejected_call(f"c{number}") for number in range(5)])
    pages = [
        management.call(
            management.admin_key, "GET", "/admin/throttling/events", limit=2, offset=offset
        )
        for offset in (0, 2, 4)
    ]
    assert [item["call_id"] for page in pages for item in page["items"]] == [
        "c4",
        "c3",
        "c2",
        "c1",
        "c0",
    ]
