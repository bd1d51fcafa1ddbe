"""Report exports over HTTP: requests, access, file contents, rejections."""

import csv
import hashlib
import io
import json
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pyarrow.parquet as pq
import pytest
from export_world import ADMIN_PATH, LATER, PATH, ExportWorld
from sqlalchemy import select
from usage_histories import START, calls

from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.reporting.exports import (
    content,
    interaction_files,
    parts,
    repository,
    service,
    work,
)
from fairserve.platform.reporting.usage.rollups import roll_up


@pytest.fixture
def world(management):
    world = ExportWorld(management)
    world.fill()
    return world


BY_DAY = {"group_by": "app,user,day", "zone": "Europe/Berlin"}
PAGE = {"group_by": "model,hour", "from": "2026-03-28", "to": "2026-03-28", "limit": 7, "offset": 2}


QUERIES_OF_FILES = [
    (BY_DAY, "csv"),
    (BY_DAY, "parquet"),
    (PAGE, "json"),
    (PAGE, "csv"),
    (PAGE, "html"),
    ({"user": "Zoe"}, "json"),
]


def test_a_file_equals_the_report(world, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1000)
    askers = [(world.key, "/v1/usage"), (world.management.admin_key, "/admin/usage")]
    for (query, format), (key, path) in product(QUERIES_OF_FILES, askers):
        if format == "html" and key != world.key:
            continue
        answer = world.raw(path, key, format=format, **query)
        assert answer.status_code == 200
        made = world.made(key, f"{path}/exports", format=format, **query)
        assert made.headers["content-type"] == answer.headers["content-type"]
        assert made.headers["content-disposition"] == f'attachment; filename="usage.{format}"'
        if format == "html":  # the drawing library assigns random ids to its elements
            assert plain(made.text) == plain(answer.text)
        else:
            assert made.content == answer.content


def plain(page):
    return [part.partition('"')[2] for part in page.split("base64,")]


def listed(world, key, path, **query):
    """Return all interactions, read page by page."""
    found = []
    while True:
        page = world.management.call(key, "GET", path, limit=7, offset=len(found), **query)
        found += page["items"]
        if len(found) >= page["total"]:
            return found


QUERIES_OF_RUNS = [
    {"from": "2026-03-28", "zone": "Asia/Tokyo"},
    {"state": "aborted"},
    {"user": "Zoe"},
]


def test_an_export_lists_the_interactions_of_all_pages(world, monkeypatch):
    monkeypatch.setattr(content, "PAGE_ROWS", 4)
    monkeypatch.setattr(interaction_files, "GROUP_ROWS", 10)
    monkeypatch.setattr(parts, "PART_BYTES", 400)
    askers = [
        (world.key, "/v1/usage"),
        (world.app["api_key"], "/v1/usage"),
        (world.management.admin_key, "/admin/usage"),
    ]
    asked = [({}, *each) for each in askers] + [(query, *askers[0]) for query in QUERIES_OF_RUNS]
    for query, key, path in asked:
        expected = listed(world, key, f"{path}/interactions", **query)
        made = {
            format: world.made(key, f"{path}/exports", kind="interactions", format=format, **query)
            for format in ("json", "csv", "parquet")
        }
        assert made["json"].headers["content-type"] == "application/x-ndjson"
        assert 'filename="interactions.jsonl"' in made["json"].headers["content-disposition"]
        assert [json.loads(line) for line in made["json"].content.splitlines()] == expected
        rows = list(csv.DictReader(io.StringIO(made["csv"].text, newline="")))
        assert [row["interaction"] for row in rows] == [row["interaction"] for row in expected]
        assert [float(row["cost"]) for row in rows] == [row["cost"] for row in expected]
        file = pq.ParquetFile(io.BytesIO(made["parquet"].content))
        assert (file.num_row_groups > 1) == (len(expected) > 12)
        audited = [
            row | {"cost": float(row["cost"])}
            | {name: row[name].isoformat().replace("+00:00", "Z") for name in TIMES}
            for row in file.read().to_pylist()
        ]  # fmt: skip
        assert audited == expected
        assert str(file.schema_arrow.field("cost").type) == "decimal128(38, 9)"


TIMES = ("opened_at", "ended_at")


def test_an_empty_report_is_exported(world):
    for format, lines in (("json", 0), ("csv", 1), ("parquet", None)):
        made = world.made(kind="interactions", format=format, user="nobody")
        if lines is None:
            assert pq.read_table(io.BytesIO(made.content)).num_rows == 0
        else:
            assert len(made.text.splitlines()) == lines
        assert made.headers["etag"] == f'"{hashlib.sha256(made.content).hexdigest()}"'


def test_an_export_is_requested_polled_and_downloaded(world, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 64)
    answer = world.raw(PATH, method="POST", group_by="app", user="Zoe")
    assert answer.status_code == 202
    export = answer.json()
    assert answer.headers["location"] == f"{PATH}/{export['id']}"
    assert export == {
        "object": "usage.export",
        "id": export["id"],
        "kind": "usage",
        "format": "json",
        "asked_by": "tenant",
        "tenant": world.one["id"],
        "app": None,
        "user": "Zoe",
        "query": {"group_by": ["app"]},
        "state": "queued",
        "created_at": export["created_at"],
        **dict.fromkeys(["progress", "size_bytes", "sha256", "error", "finished_at", "expires_at"]),
    }
    assert world.read_export(export) == export
    early = world.file(export)
    assert early.status_code == 409
    assert early.json()["error"]["code"] == "not_ready"
    assert early.json()["error"]["fairserve"] == {"state": "queued"}
    assert (world.make(), world.make()) == (1, 0)
    ready = world.read_export(export)
    assert (ready["state"], ready["progress"]) == ("ready", 1.0)
    file = world.file(export)
    digest = hashlib.sha256(file.content).hexdigest()
    assert (ready["sha256"], ready["size_bytes"]) == (digest, len(file.content))
    assert file.headers["etag"] == f'"{digest}"'
    assert file.headers["content-length"] == str(len(file.content))
    assert len(world.parts()) == 1
    assert next(iter(world.parts().values())) > 5
    again = world.file(export, headers={"If-None-Match": f'"{digest}"'})
    assert (again.status_code, again.content) == (304, b"")
    assert world.raw(f"{PATH}/{export['id']}", method="DELETE").status_code == 204
    assert world.read_export(export, status=404)["error"]["code"] == "not_found"
    assert world.parts() == {}


def test_a_waiting_export_is_cancelled(world):
    export = world.request_export()
    world.raw(f"{PATH}/{export['id']}", method="DELETE")
    assert world.make() == 0
    assert world.read_export(export, status=404)


def test_an_expired_export_is_gone(world, monkeypatch):
    export = world.request_export(format="csv")
    world.at -= LATER
    monkeypatch.setattr(work, "KEPT", timedelta(minutes=1))
    assert world.make() == 1
    gone = world.file(export)
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "expired")
    assert world.read_export(export)["state"] == "expired"
    assert world.read_export(export)["size_bytes"] is None
    assert world.parts(), "nobody has cleaned up yet"


def test_an_impossible_export_has_an_error_and_no_file(world, monkeypatch):
    monkeypatch.setattr("fairserve.platform.reporting.usage.formats.MAX_ROWS", 1)
    export = world.request_export(group_by="user", format="csv")
    assert world.make() == 1
    failed = world.read_export(export)
    assert failed["state"] == "failed"
    assert "restrict it with" in failed["error"]
    assert failed["expires_at"] > failed["finished_at"]
    answer = world.file(export)
    assert answer.status_code == 409
    assert "restrict it with" in answer.json()["error"]["message"]


def test_an_invalid_request_is_rejected(world):
    for query, param in (
        ({"zone": "Mars/Base"}, "zone"),
        ({"group_by": "tenant"}, "group_by"),
        ({"kind": "interactions", "zone": "Mars/Base"}, "zone"),
        ({"format": "pdf"}, "format"),
        ({"kind": "calls"}, "kind"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, "from"),
        ({"kind": "interactions", "format": "html"}, "format"),
        ({"kind": "interactions", "group_by": "app"}, "group_by"),
        ({"kind": "interactions", "model": "m"}, "model"),
        ({"kind": "interactions", "limit": 5}, "limit"),
        ({"state": "aborted"}, "state"),
        ({"unknown": 1}, "unknown"),
    ):
        assert world.request_export(status=400, **query)["error"]["param"] == param, query
    (call,) = calls(9, 1, start=START - 200 * 86_400)
    with world.sessions.begin() as session:
        upsert_calls(session, [replace(call, tenant=world.one["id"])])
    assert roll_up(world.sessions)
    assert world.request_export(status=400, group_by="hour")["error"]["param"] == "from"
    assert world.management.call(world.key, "GET", PATH)["total"] == 0


def test_a_missing_extra_is_an_immediate_error(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for query in ({"format": "parquet"}, {"format": "parquet", "kind": "interactions"}):
        assert "fairserve[reports]" in world.request_export(status=400, **query)["error"]["message"]
    assert (
        "fairserve[reports]" in world.request_export(status=400, format="html")["error"]["message"]
    )
    world.request_export(format="csv")


def test_each_key_sees_only_its_own_exports(world):
    admin, named = world.management.admin_key, {"tenant": world.one["id"]}
    exports = {
        "app": world.request_export(world.app["api_key"]),
        "second": world.request_export(world.second["api_key"]),
        "tenant": world.request_export(app=world.app["id"]),
        "other": world.request_export(world.other["api_key"]),
        "named": world.request_export(admin, tenant=world.one["id"]),
        "operator": world.request_export(admin, ADMIN_PATH),
        "about": world.request_export(
            admin, ADMIN_PATH, tenant=world.one["id"], group_by="tenant,user"
        ),
    }
    assert exports["app"]["app"] == world.app["id"]
    assert (exports["named"]["asked_by"], exports["about"]["asked_by"]) == ("tenant", "operator")
    assert world.make() == len(exports)
    sight = {
        (world.app["api_key"], PATH): ["app"],
        (world.second["api_key"], PATH): ["second"],
        (world.key, PATH): ["app", "second", "tenant", "named"],
        (world.other["api_key"], PATH): ["other"],
        (world.foreign["api_key"], PATH): [],
        (admin, ADMIN_PATH): list(exports),
    }
    for (key, path), seen in sight.items():
        found = world.management.call(key, "GET", path)
        assert [item["id"] for item in found["items"]] == [exports[n]["id"] for n in seen][::-1]
        assert found["total"] == len(seen)
        for name, export in exports.items():
            status = 200 if name in seen else 404
            world.read_export(export, key, path, status=status)
            assert world.file(export, key, path).status_code == status
            if status == 404:
                world.management.call(key, "DELETE", f"{path}/{export['id']}", status=404)
    page = world.management.call(world.key, "GET", PATH, limit=2, offset=1)["items"]
    assert [item["id"] for item in page] == [exports[n]["id"] for n in ("tenant", "second")]
    about_one = world.management.call(admin, "GET", ADMIN_PATH, tenant=world.one["id"])
    assert about_one["total"] == 5
    assert world.management.call(admin, "GET", PATH, **named)["total"] == 4
    world.read_export(exports["app"], admin, PATH, **named)
    world.read_export(exports["other"], admin, PATH, status=404, **named)
    answer = world.raw(PATH, admin, method="POST", **named)
    assert answer.headers["location"].endswith(f"?tenant={world.one['id']}")
    world.request_export(admin, status=400)
    world.request_export(admin, status=404, tenant="tn_none")
    world.request_export(status=404, app=world.foreign["id"])
    world.request_export(world.app["api_key"], status=404, app=world.second["id"])
    world.request_export(status=404, tenant=world.other["id"])
    world.request_export(path=ADMIN_PATH, status=403)


def test_a_file_contains_no_data_of_other_tenants(world):
    for query in ({"group_by": "app,user"}, {"kind": "interactions"}):
        for format in ("json", "csv"):
            for key in (world.key, world.app["api_key"]):
                text = world.made(key, format=format, **query).text
                assert world.app["id"] in text
                assert world.foreign["id"] not in text
                assert (world.second["id"] in text) == (key == world.key)


def test_waiting_exports_of_a_tenant_are_bounded(world, monkeypatch):
    monkeypatch.setattr(service, "MAX_UNFINISHED", 3)
    first = world.request_export()
    world.request_export(world.app["api_key"])
    world.request_export(world.second["api_key"])
    rejected = world.raw(PATH, world.app["api_key"], method="POST")
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "too_many_exports")
    assert rejected.headers["retry-after"] == "60"
    world.request_export(world.other["api_key"])
    for _ in range(3):
        world.request_export(world.management.admin_key, ADMIN_PATH, tenant=world.one["id"])
    world.request_export(world.management.admin_key, ADMIN_PATH, status=429)
    world.raw(f"{PATH}/{first['id']}", method="DELETE")
    world.request_export()
    assert world.make() == 7
    world.request_export()


def test_rows_are_bounded(world, monkeypatch):
    monkeypatch.setattr(service, "MAX_LISTED", 2)
    for _ in range(2):
        world.made()
    assert "delete some" in world.request_export(status=429)["error"]["message"]
    world.request_export(world.other["api_key"])


def test_bytes_are_bounded_by_tenant_and_in_total(world, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    size = len(world.made(kind="interactions", format="csv").content)
    monkeypatch.setattr(repository, "MAX_BYTES_PER_TENANT", 2 * size - 1)
    too_much = world.request_export(kind="interactions", format="csv")
    assert world.make() == 1
    failed = world.read_export(too_much)
    assert failed["state"] == "failed"
    assert "are allowed now; request a smaller export" in failed["error"]
    assert len(world.parts()) == 1, "what was written of it has gone"
    world.made(world.other["api_key"], kind="interactions", format="csv")
    monkeypatch.setattr(repository, "MAX_BYTES_PER_TENANT", size)
    assert "delete some" in world.request_export(status=429)["error"]["message"]
    monkeypatch.setattr(repository, "MAX_BYTES_PER_TENANT", 1 << 30)
    monkeypatch.setattr(repository, "MAX_BYTES", 2 * size)
    rejected = world.request_export(kind="interactions", format="csv")
    world.make()
    assert "are allowed now" in world.read_export(rejected)["error"]
    monkeypatch.setattr(repository, "MAX_BYTES", size)
    assert (
        "0 are allowed now"
        in world.request_export(world.other["api_key"], status=429)["error"]["message"]
    )


def test_the_audit_log_names_no_user(world):
    export = world.request_export(user="Zoe", kind="interactions")
    world.raw(f"{PATH}/{export['id']}", method="DELETE")
    with world.sessions() as session:
        rows = session.scalars(
            select(AuditEntry).where(AuditEntry.target == export["id"]).order_by(AuditEntry.at)
        ).all()
    assert [row.action for row in rows] == ["export.create", "export.delete"]
    audited = {"kind": "interactions", "format": "json", "app": None, "names_users": True}
    assert (rows[0].after, rows[1].before) == (audited, audited)


def test_exports_that_may_name_users_are_marked(world):
    for query, named in (
        ({"group_by": "app,day"}, False),
        ({"group_by": "user"}, True),
        ({"user": "Zoe"}, True),
        ({"format": "html"}, True),
        ({"kind": "interactions"}, True),
    ):
        export = world.request_export(**query)
        with world.sessions() as session:
            assert session.get(ReportExport, export["id"]).names_users is named, query
