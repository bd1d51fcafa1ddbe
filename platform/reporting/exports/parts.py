"""Write the file of an attempt in parts; each short transaction also renews the lease.

The storage limits are checked with every part. Weakness: processes that write at the same time do not
see each other's last part, so each of them may exceed a limit by one part.
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
from fairserve.platform.reporting.exports.outages import RetryWhileDbDown

PART_BYTES = 1 << 20


class PartWriter:
    """Splits the bytes of a file into parts and stores them; buffers less than one part."""

    def __init__(
        self,
        sessions: SessionFactory,
        export: ReportExport,
        retry_while_db_down: RetryWhileDbDown,
        now: Now,
    ) -> None:
        self.progress: float | None = None
        """Fraction done; stored with the next part."""
        self.size_bytes = 0
        self._sessions = sessions
        self._export = export
        self._retry_while_db_down = retry_while_db_down
        self._now = now
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self._number = 0

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the written bytes, hexadecimal."""
        return self._hash.hexdigest()

    def write(self, piece: bytes) -> None:
        """Append to the file. Raises RowLeaseLostError, and ConflictError beyond a storage limit."""
        self._hash.update(piece)
        self._pending += piece
        while len(self._pending) >= PART_BYTES:
            self._write_part(bytes(self._pending[:PART_BYTES]))
            del self._pending[:PART_BYTES]

    def flush(self) -> None:
        """Write the remaining bytes. Nothing may be added afterwards."""
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
                self._check_capacity(session)
                key = {
                    "export_id": self._export.id,
                    "attempt": self._export.attempt,
                    "number": self._number,
                }
                # The part exists already if the response to its commit was lost.
                same = [getattr(ReportExportPart, name) == value for name, value in key.items()]
                session.execute(delete(ReportExportPart).where(*same))
                session.execute(insert(ReportExportPart).values(**key, data=data))

        self._retry_while_db_down(once)
        self.size_bytes = size_bytes
        self._number += 1

    def _check_capacity(self, session: Session) -> None:
        kept = repository.kept_bytes(session, repository.same_bounds(self._export))
        allowed = repository.allowed_bytes(session, kept)
        if kept > allowed:
            raise ConflictError(
                f"the stored exports would have {kept:,} bytes, and {allowed:,} are allowed now;"
                " request a smaller export, or delete others"
            )
