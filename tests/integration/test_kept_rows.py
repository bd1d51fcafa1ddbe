"""Rows that apps keep have bounds of their app and of their tenant."""

import asyncio
from datetime import UTC, datetime, timedelta

import databases
import pytest
from program_calls import add_apps
from sqlalchemy import select

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.platform.db.batches import Batch
from fairserve.platform.db.programs import ProgramRow
from fairserve.platform.db.responses import StoredConversation, StoredResponse
from fairserve.platform.serving.batches import service as batches
from fairserve.platform.serving.batches.schemas import BatchCreate
from fairserve.platform.serving.files.repository import FileOwner
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.files.store import open_store
from fairserve.platform.serving.kept_rows import KeptRows, RowBounds
from fairserve.platform.serving.programs import store as programs
from fairserve.platform.serving.programs.repository import ProgramKey, SavedProgram
from fairserve.platform.serving.responses.options import StoreOptions
from fairserve.platform.serving.responses.repository import UNFINISHED

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = StoreOptions(
    max_per_app=10,
    max_bytes_per_app=1000,
    max_per_tenant=20,
    max_bytes_per_tenant=1500,
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


def kept_rows(order, **more):
    size = order.class_.size_bytes
    return KeptRows(
        order.class_,
        order,
        of_app=OPTIONS.of_app,
        of_tenant=OPTIONS.of_tenant,
        size=size,
        **more,
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
    bounds = kept_rows(order)

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


@pytest.mark.parametrize(("size_bytes", "most"), [(1, 20), (100, 15)], ids=["rows", "bytes"])
def test_the_bound_is_that_of_all_servers_together(sessions, size_bytes, most):
    apps = [f"a{number}" for number in range(8)]
    add_apps(sessions, *apps)
    order = StoredResponse.created_at
    servers = [kept_rows(order) for _ in range(3)]
    for number in range(90):
        app, bounds = apps[number % 8], servers[number % 3]
        with sessions.begin() as session:
            session.add(response("t", app, number, size_bytes))
            session.flush()
            bounds.add(session, "t", app, 1, size_bytes)
        with sessions() as session:
            kept = session.scalars(select(order.class_.id)).all()
        assert len(kept) <= most + len(servers) * (1 + most // 10)


def test_responses_in_the_background_are_not_deleted_at_a_bound(sessions):
    add_apps(sessions, "a")
    removable = StoredResponse.status.not_in(UNFINISHED)
    bounds = kept_rows(StoredResponse.created_at, removable=removable)
    for number in range(15):
        with sessions.begin() as session:
            session.add(response("t", "a", number, 1, "queued" if number == 0 else "completed"))
            session.flush()
            bounds.add(session, "t", "a", 1, 1)
    with sessions() as session:
        found = list(session.scalars(select(StoredResponse.id).order_by(StoredResponse.id)))
    assert (found[0], len(found) <= 10) == ("a-0000", True)


@databases.ON_BOTH
def test_ended_programs_of_a_tenant_are_bounded(sessions, monkeypatch):
    monkeypatch.setattr(programs, "MOST_KEPT", RowBounds(10, 1000))
    add_apps(sessions, "a", "b")
    store = programs.ProgramStore(sessions)
    for number in range(30):
        key = ProgramKey("t", "ab"[number % 2], f"p{number % 3 if number < 4 else number}")
        state = "running" if number < 3 else "failed"
        at = BEGIN + timedelta(seconds=number)
        declaration = {"nodes": "x" * 80}
        store._insert(SavedProgram(key, "u", declaration, ProgramLimits(), state, "", at, at))
    with sessions() as session:
        found = {tuple(row) for row in session.execute(select(ProgramRow.app_id, ProgramRow.id))}
    assert found >= {("a", "p0"), ("b", "p1"), ("a", "p2"), ("b", "p29")}, "live ones stay"
    assert 8 <= len(found) <= 10


@databases.ON_BOTH
async def test_ended_batches_of_a_tenant_are_bounded(sessions, monkeypatch):
    monkeypatch.setattr(batches, "MOST_KEPT", RowBounds(5))
    add_apps(sessions, "a", "b")
    files = Files(sessions, open_store("", sessions))
    service = batches.Batches(sessions, files, {})
    made = []
    for number in range(12):
        owner = FileOwner("t", "ab"[number % 2])
        file_id = await asyncio.to_thread(files.reserve, owner, "batch", 1)
        with sessions.begin() as session:
            files.complete(session, file_id, "f", 1)
        query = BatchCreate(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        made.append((await asyncio.to_thread(service._create, owner, query)).id)
        if number:
            with sessions.begin() as session:
                session.get(Batch, made[-1]).state = "cancelled"
    with sessions() as session:
        found = set(session.scalars(select(Batch.id)))
    assert made[0] in found, "it has not ended"
    assert made[-1] in found
    assert len(found) <= 5
