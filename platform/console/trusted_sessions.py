"""Sessions while the database is away: those that this process has found valid lately.

Every check with the database is noted. While it does not answer, a noted session stays valid for
:data:`TRUSTED_S` after its last check, and not beyond its own end or that of its key. A sign-out, a
revoked key and a suspended tenant end it at once in the process that made the change. A session that
this process has not checked needs the database.

Weakness: a session that another server ends during an outage stays valid here for that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import OperationalError

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.console import sessions
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.session import unavailable
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.settings import TenancySettings

TRUSTED_S = 3600.0
"""Seconds after its last check for which a session is valid without the database."""
MOST_SESSIONS = 2000


@dataclass(frozen=True, slots=True)
class _Checked:
    viewer: Viewer
    at_s: float


class TrustedSessions:
    """The valid sessions that this process knows, bounded; safe from any thread."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._checked: SharedTable[str, _Checked] = SharedTable(MOST_SESSIONS)
        self._ended: SharedTable[str, bool] = SharedTable(MOST_SESSIONS)
        """Sessions that ended here and may have a row still."""
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._generation = 0

    def find(
        self, factory: SessionFactory, token: str, settings: TenancySettings, now: datetime
    ) -> Viewer | None:
        """Return the viewer of a cookie (:func:`.sessions.find`); None if the session has ended.

        Raises UnavailableError if only the database knows.
        """
        session_id, generation = sessions.id_of(token), self._generation
        try:
            viewer = sessions.find(factory, token, settings, now)
        except OperationalError as error:
            viewer = self._trusted(session_id, now)
            if viewer is None:
                raise unavailable() from error
            return viewer
        return viewer if self._note(session_id, viewer, generation) else None

    def still_holds(
        self, factory: SessionFactory, viewer: Viewer, settings: TenancySettings, now: datetime
    ) -> bool:
        """Return whether the session of an open page is still valid; counts as use."""
        generation = self._generation
        try:
            valid = sessions.still_holds(factory, viewer, settings, now)
        except OperationalError:
            return self._trusted(viewer.session_id, now) is not None
        return self._note(viewer.session_id, viewer if valid else None, generation)

    def end(self, viewer: Viewer) -> None:
        """End a session here at once, whether or not the database answers."""
        with self._lock:
            self._checked.pop(viewer.session_id)
            self._ended.put((viewer.principal.sharer,), viewer.session_id, True)

    def forget(self, concerns: Callable[[Principal], bool]) -> None:
        """Forget the sessions of keys that may have changed: the database decides about them.

        Checks in progress may have read before the change; they are not noted.
        """
        with self._lock:
            self._generation += 1
            for _, session_id, _, checked in list(self._checked.items()):
                if concerns(checked.viewer.principal):
                    self._checked.pop(session_id)

    def _note(self, session_id: str, viewer: Viewer | None, generation: int) -> bool:
        """Note what the database knows of a session; return whether it is valid."""
        with self._lock:
            if viewer is None or self._ended.get(session_id):
                self._checked.pop(session_id)
                return False
            if generation != self._generation:
                return True
            checked = _Checked(viewer, self._monotonic_s())
            self._checked.put((viewer.principal.sharer,), session_id, checked)
            return True

    def _trusted(self, session_id: str, now: datetime) -> Viewer | None:
        with self._lock:
            checked = self._checked.get(session_id)
        if checked is None or self._monotonic_s() - checked.at_s >= TRUSTED_S:
            return None
        return checked.viewer if checked.viewer.expires_at > now else None
