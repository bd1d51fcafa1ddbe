"""Tenants with usage, and exports of it that are made on demand."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import func, select
from usage_histories import calls, runs

from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.reporting.exports import content, parts
from fairserve.platform.reporting.exports.parts import PartWriter
from fairserve.platform.reporting.exports.work import expire_exports, make_exports
from fairserve.platform.reporting.usage.rollups import roll_up

PATH = "/v1/usage/exports"
ADMIN_PATH = "/admin/usage/exports"
LATER = timedelta(seconds=61)
"""Time in seconds after which a lease has expired."""


class ExportWorld:
    """Two tenants; the first has two apps with calls and runs. ``at`` is the time of export jobs."""

    def __init__(self, management):
        self.management = management
        self.sessions = management.state.session_factory
        self.settings = management.state.settings
        self.one, self.other = management.new_tenant("one"), management.new_tenant("other")
        self.app = management.new_app(self.one)
        self.second = management.new_app(self.one, "second")
        self.foreign = management.new_app(self.other)
        self.key = self.one["api_key"]
        self.at = utc_now()

    def now(self):
        return self.at

    def fill(self, seed=1, *, call_count=150, run_count=40):
        """Write usage of all three apps; without calls there are no rollups."""
        apps = {
            "app_a": (self.one, self.app),
            "app_B": (self.one, self.second),
            "other": (self.other, self.foreign),
        }

        def owned(record, number, **more):
            tenant, app = apps["other" if number % 5 == 0 else record.app]
            return replace(record, tenant=tenant["id"], app=app["id"], **more)

        made = [owned(call, n) for n, call in enumerate(calls(seed, call_count))]
        ended = [owned(run, n) for n, run in enumerate(runs(seed, run_count))]
        # Many begin at the same time: their ids decide the order.
        ended = [replace(run, opened_at=ended[n // 7 * 7].opened_at) for n, run in enumerate(ended)]
        with self.sessions.begin() as session:
            upsert_calls(session, made)
            upsert_interactions(session, ended)
        if call_count:
            assert roll_up(self.sessions)

    def request_export(self, key=None, path=PATH, *, status=202, **query):
        """Request an export; return its description."""
        return self.management.call(key or self.key, "POST", path, status=status, **query)

    def read_export(self, export, key=None, path=PATH, *, status=200, **query):
        found = f"{path}/{export['id']}"
        return self.management.call(key or self.key, "GET", found, status=status, **query)

    def raw(self, path, key=None, *, method="GET", headers=None, **query):
        """Return the whole answer."""
        return self.management.request(
            method, path, key or self.key, params=query, headers=headers or {}
        )

    def file(self, export, key=None, path=PATH, **more):
        return self.raw(f"{path}/{export['id']}/file", key, **more)

    def make(self, **more):
        return make_exports(self.sessions, self.settings, **{"now": self.now} | more)

    def made(self, key=None, path=PATH, **query):
        """Return the content of an export that is requested and made."""
        export = self.request_export(key, path, **query)
        assert self.make() == 1
        answer = self.file(export, key, path)
        assert answer.status_code == 200, answer.text
        return answer

    def expire(self):
        return expire_exports(self.sessions, now=self.now)

    def row(self, export):
        with self.sessions() as session:
            return read_only(session).get(ReportExport, export["id"])

    def parts(self):
        """Return the number of parts by export and attempt."""
        key = (ReportExportPart.export_id, ReportExportPart.attempt)
        with self.sessions() as session:
            return {
                tuple(row[:2]): row[2]
                for row in read_only(session).execute(select(*key, func.count()).group_by(*key))
            }


class Killed(BaseException):
    """Ends an attempt like the end of its process: nothing is written down."""


def killed_after(monkeypatch, pieces):
    """End the process once ``pieces`` parts are written; return a function that stops further kills."""
    real = PartWriter._write_part
    written = []

    def dies(self, data):
        if len(written) == pieces:
            raise Killed
        written.append(len(data))
        real(self, data)

    monkeypatch.setattr(PartWriter, "_write_part", dies)
    return lambda: monkeypatch.setattr(PartWriter, "_write_part", real)


LISTED = {"kind": "interactions", "format": "json"}


def filled_world(management, monkeypatch, **counts):
    """Return a world with small pages and parts, so that every file has many."""
    monkeypatch.setattr(content, "PAGE_ROWS", 5)
    monkeypatch.setattr(parts, "PART_BYTES", 300)
    world = ExportWorld(management)
    world.fill(**counts)
    return world


def whole_file(world):
    """Return the expected export of all interactions."""
    return world.made(**LISTED).content
