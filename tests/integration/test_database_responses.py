"""Stored responses and conversations have bounds of their app and of their tenant."""

from datetime import UTC, datetime, timedelta

import databases
import pytest
from program_calls import add_apps
from sqlalchemy import select

from fairserve.platform.db.responses import StoredConversation, StoredResponse
from fairserve.platform.serving.responses.bounds import StoreBounds, StoreOptions
from fairserve.platform.serving.responses.repository import UNFINISHED

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = StoreOptions(
    response_max_per_app=10,
    response_max_bytes_per_app=1000,
    response_max_per_tenant=20,
    response_max_bytes_per_tenant=1500,
)


def response(tenant, app, number, size_bytes, status="completed"):
    return StoredResponse(
        tenant_id=tenant,
        app_id=app,
        id=f"{app}-{number:04d}",
        user_id="u",
        run_id="r",
        call_id="c",
        status=status,
        created_at=BEGIN + timedelta(seconds=number),
        items=[],
        response={},
        size_bytes=size_bytes,
    )


def conversation(tenant, app, number, size_bytes):
    at = BEGIN + timedelta(seconds=number)
    return StoredConversation(
        tenant_id=tenant,
        app_id=app,
        id=f"{app}-{number:04d}",
        user_id="u",
        details={},
        created_at=at,
        changed_at=at,
        next_position=0,
        size_bytes=size_bytes,
    )


@databases.ON_BOTH
@pytest.mark.parametrize(
    ("make", "order"),
    [(response, StoredResponse.created_at), (conversation, StoredConversation.changed_at)],
)
@pytest.mark.parametrize(("size_bytes", "most"), [(1, 20), (100, 15)], ids=["rows", "bytes"])
def test_a_tenant_keeps_a_bounded_number_whatever_its_apps(sessions, make, order, size_bytes, most):
    apps = [f"a{number}" for number in range(8)]
    add_apps(sessions, *apps)
    add_apps(sessions, "other", tenant="v")
    bounds = StoreBounds(order.class_, order, OPTIONS)

    def kept():
        with sessions() as session:
            return list(session.scalars(select(order.class_.id).order_by(order)))

    with sessions.begin() as session:
        session.add(make("v", "other", 0, size_bytes))
        session.flush()
        bounds.add(session, "v", "other", 1, size_bytes)
    for number in range(1, 60):
        app = apps[number % 8]
        with sessions.begin() as session:
            session.add(make("t", app, number, size_bytes))
            session.flush()
            bounds.add(session, "t", app, 1, size_bytes)
        assert len(kept()) <= most + 1
    assert len(kept()) >= most * 0.9 - 1
    assert kept()[0] == "other-0000", "another tenant's oldest stays"
    assert kept()[-1] == f"{app}-0059"


def test_responses_in_the_background_are_not_deleted_at_a_bound(sessions):
    add_apps(sessions, "a")
    removable = StoredResponse.status.not_in(UNFINISHED)
    bounds = StoreBounds(StoredResponse, StoredResponse.created_at, OPTIONS, removable)
    for number in range(15):
        with sessions.begin() as session:
            session.add(response("t", "a", number, 1, "queued" if number == 0 else "completed"))
            session.flush()
            bounds.add(session, "t", "a", 1, 1)
    with sessions() as session:
        found = list(session.scalars(select(StoredResponse.id).order_by(StoredResponse.id)))
    assert (found[0], len(found) <= 10) == ("a-0000", True)
