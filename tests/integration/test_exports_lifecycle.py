"""Test expiry, erasure and purge of exports, and the memory that an export needs."""

import gc
import tracemalloc
from datetime import timedelta
from random import randbytes

import databases
import pyarrow
import pytest
from export_world import LATER, LISTED, Killed, filled_world, killed_after
from sqlalchemy import select

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.reporting.exports import claims, content, parts, repository
from fairserve.platform.reporting.exports.erasure import forget_user
from fairserve.platform.reporting.exports.parts import PartWriter
from fairserve.platform.reporting.exports.work import FORGOTTEN_AFTER, WAIT
from fairserve.platform.tenancy.tenants.purge import purge


@pytest.fixture
def world(management, monkeypatch):
    return filled_world(management, monkeypatch)


def test_files_expire_before_their_rows(world):
    export, kept = (
        world.request_export(**LISTED),
        world.request_export(world.other["api_key"], **LISTED),
    )
    world.make()
    world.at += timedelta(hours=71)
    assert world.expire() == 0
    assert len(world.parts()) == 2
    world.at += timedelta(hours=1)
    assert world.expire() == 2
    assert world.parts() == {}
    assert world.expire() == 0
    for each, key in ((export, world.key), (kept, world.other["api_key"])):
        assert world.read_export(each, key)["state"] == "expired"
        assert world.file(each, key).status_code == 410
    world.at += FORGOTTEN_AFTER
    assert world.expire() == 2
    world.read_export(export, status=404)


def test_an_interrupted_expiry_is_finished_by_the_next(world, monkeypatch):
    world.request_export(**LISTED)
    world.make()
    world.at += timedelta(hours=72)
    monkeypatch.setattr(repository, "_DELETED_PARTS", 2)

    def dies(*args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(repository, "drop_parts", dies)
        with pytest.raises(Killed):
            world.expire()
    assert world.parts()
    assert world.expire() == 0
    assert world.parts() == {}


def test_orphaned_parts_are_deleted(world, monkeypatch):
    """Parts of an interrupted attempt are deleted before another process claims the export."""
    export = world.request_export(**LISTED)
    revive = killed_after(monkeypatch, 3)
    with pytest.raises(Killed):
        world.make()
    revive()
    assert world.expire() == 0
    assert world.parts() == {(export["id"], 1): 3}, "it may live"
    claims.release(world.sessions, world.row(export))
    world.expire()
    assert world.parts() == {}


def test_an_unclaimed_export_fails_eventually(world):
    export = world.request_export(**LISTED)
    world.at += WAIT
    assert world.expire() == 0
    world.at += LATER
    assert world.expire() == 1
    assert "check that background jobs are running" in world.read_export(export)["error"]
    assert world.make() == 0


def test_a_download_of_a_deleted_file_is_incomplete(world):
    export = world.request_export(**LISTED)
    world.make()
    row = world.row(export)
    read = repository.parts(world.sessions, row.id, row.attempt, row.size_bytes)
    assert len(next(read)) == 300
    world.raw(f"/v1/usage/exports/{export['id']}", method="DELETE")
    with pytest.raises(ConnectionAbortedError):
        list(read)


def test_an_erasure_deletes_exports_that_may_name_the_user(world, monkeypatch):
    admin, other = world.management.admin_key, world.other["api_key"]
    about = "/admin/usage/exports"
    goes = [
        world.request_export(**LISTED),
        world.request_export(world.app["api_key"], group_by="user"),
        world.request_export(format="html"),
        world.request_export(user="Zoe", format="csv"),
        world.request_export(admin, about, group_by="user"),
        world.request_export(admin, about, tenant=world.one["id"], kind="interactions"),
    ]
    stays = [
        world.request_export(group_by="app,day", format="csv"),
        world.request_export(user="anna"),
        world.request_export(other, group_by="user"),
        world.request_export(admin, about, tenant=world.other["id"], kind="interactions"),
    ]
    assert world.make() == 10
    waits = [
        world.request_export(user="Zoe"),
        world.request_export(user="anna"),
        world.request_export(group_by="user"),
    ]
    assert forget_user(world.sessions, world.one["id"], "Zoe") == 7
    left = {item["id"] for item in world.management.call(admin, "GET", about)["items"]}
    assert left == {export["id"] for export in [*stays, *waits[1:]]}
    assert {key[0] for key in world.parts()} == {export["id"] for export in stays}
    assert forget_user(world.sessions, world.one["id"], "Zoe") == 0
    assert not left & {export["id"] for export in goes}
    assert world.make() == 2


def test_an_erasure_voids_exports_in_progress(world, monkeypatch):
    """The attempt has already read the user's rows."""
    export = world.request_export(**LISTED)
    real = PartWriter._write_part
    erased = []

    def erase(self, data):
        if self._number == 3 and not erased:
            assert forget_user(world.sessions, world.one["id"], "Zoe") == 0
            erased.append(world.parts())
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", erase)
    assert world.make() == 2, "once in vain, and once anew"
    assert erased == [{}]
    row = world.row(export)
    assert (row.state, row.attempt, row.lost) == ("ready", 2, 0)


@databases.ON_POSTGRESQL
@pytest.mark.parametrize("kind", ["app", "tenant"])
def test_a_purge_deletes_the_exports(world, kind):
    exports = [
        world.request_export(world.app["api_key"]),
        world.request_export(),
        world.request_export(world.other["api_key"]),
    ]
    world.make()
    if kind == "app":
        world.management.call(world.key, "DELETE", f"/v1/apps/{world.app['id']}")
    else:
        world.management.call(
            world.management.admin_key, "DELETE", f"/admin/tenants/{world.one['id']}"
        )
    while True:
        with world.sessions.begin() as session:
            if not purge(session, utc_now() + timedelta(seconds=1)):
                break
    with world.sessions() as session:
        left = set(session.scalars(select(ReportExport.id)))
        assert set(session.scalars(select(ReportExportPart.export_id))) == left
    assert left == {export["id"] for export in exports[{"app": 1, "tenant": 2}[kind] :]}


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_memory_does_not_grow_with_the_file(world, monkeypatch, format):
    """Compare the memory peaks of Python and Arrow for ten times as many interactions."""
    monkeypatch.setattr(content, "PAGE_ROWS", 200)
    monkeypatch.setattr(content.interactions, "count", lambda *args, **more: 1)
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 16)
    with world.sessions() as session:
        some = content.interactions.after(
            session, content.InteractionUsageQuery(), None, tenant_id=None, app_id=None, rows=20
        )

    def peak(pages):
        left = iter(range(pages))
        arrow_bytes = []

        def after(*args, **more):
            gc.collect()  # garbage is collected first, so that only live memory counts
            arrow_bytes.append(pyarrow.total_allocated_bytes())
            rows = some * 10 if next(left, None) is not None else []
            return [row.model_copy(update={"interaction": randbytes(40).hex()}) for row in rows]

        monkeypatch.setattr(content.interactions, "after", after)
        monkeypatch.setattr(
            "fairserve.platform.reporting.exports.interaction_files.GROUP_ROWS", 1000
        )
        export = world.request_export(kind="interactions", format=format)
        gc.collect()
        gc.freeze()  # so that a collection scans few objects
        tracemalloc.start()
        assert world.make() == 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.unfreeze()
        return peak_bytes + max(arrow_bytes) - arrow_bytes[0], world.row(export).size_bytes

    peak(2)
    (few, _), (many, size_bytes) = peak(8), peak(80)
    assert size_bytes > many / 2
    assert many < 2 * few, (few, many, size_bytes)
