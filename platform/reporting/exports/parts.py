"""The file of an attempt, written part by part, each in a short transaction that also extends the lease.

The bounds on what is kept are checked with every part. Weakness: processes that write at the same time
do not see each other's last part, so a bound may be passed by a part for each of them.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.reporting.exports import claims, repository
from fairserve.platform.reporting.exports.claims import Now
from fairserve.platform.reporting.exports.patience import Patience
from fairserve.platform.reporting.settings import ReportingSettings

PART_BYTES = 1 << 20


class PartWriter:
    """Takes the bytes of a file in any pieces; holds less than a part of them, and what it was given."""

    def __init__(
        self,
        sessions: SessionFactory,
        export: ReportExport,
        settings: ReportingSettings,
        patiently: Patience,
        now: Now,
    ) -> None:
        self.progress: float | None = None
        """Stored with the next part."""
        self.size_bytes = 0
        self._sessions = sessions
        self._export = export
        self._settings = settings
        self._patiently = patiently
        self._now = now
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self._number = 0

    @property
    def sha256(self) -> str:
        """Of what was written, hexadecimal."""
        return self._hash.hexdigest()

    def write(self, piece: bytes) -> None:
        """Add to the file. Raises RowLeaseLostError, and ConflictError where too much would be kept."""
        self._hash.update(piece)
        self._pending += piece
        while len(self._pending) >= PART_BYTES:
            self._write_part(bytes(self._pending[:PART_BYTES]))
            del self._pending[:PART_BYTES]

    def flush(self) -> None:
        """Write what is left; nothing may be added then."""
        if self._pending:
            self._write_part(bytes(self._pending))
            self._pending.clear()

    def _write_part(self, data: bytes) -> None:
        size_bytes = self.size_bytes + len(data)

        def once() -> None:
            with self._sessions.begin() as session:
                claims.renew(
                    session,
                    self._export,
                    self._now,
                    size_bytes=size_bytes,
                    progress=self.progress,
                )
                self._check_room(session)
                key = {
                    "export_id": self._export.id,
                    "attempt": self._export.attempt,
                    "number": self._number,
                }
                # It is there already if the answer to the commit was lost.
                same = [getattr(ReportExportPart, name) == value for name, value in key.items()]
                session.execute(delete(ReportExportPart).where(*same))
                session.execute(insert(ReportExportPart).values(**key, data=data))

        self._patiently(once)
        self.size_bytes = size_bytes
        self._number += 1

    def _check_room(self, session: Session) -> None:
        for where, setting in (
            (repository.same_bounds(self._export), "export_max_bytes_per_tenant"),
            ([], "export_max_bytes"),
        ):
            allowed: int = getattr(self._settings, setting)
            if repository.kept_bytes(session, where) > allowed:
                raise ConflictError(
                    f"with this file more than {allowed:,} bytes of exports would be kept"
                    f" ({setting}); ask for less, or delete others"
                )
