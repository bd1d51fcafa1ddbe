"""Names of tenants and apps: those in the database, or the last known ones while it does not answer."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from sqlalchemy.exc import OperationalError

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.names import names_of

MOST_NAMES = 10_000


class KnownNames:
    """The names that pages have shown, bounded; safe from any thread."""

    def __init__(self) -> None:
        self._names: SharedTable[str, str] = SharedTable(MOST_NAMES)
        self._lock = threading.Lock()

    def read(
        self,
        sessions: SessionFactory,
        sharer: str,
        *,
        tenants: Collection[str] = (),
        apps: Collection[str] = (),
    ) -> dict[str, str]:
        """Return names by id, for a page of ``sharer``: a tenant, or the operators. Blocks."""
        try:
            with sessions() as session:
                found = names_of(read_only(session), tenants=tenants, apps=apps)
        except OperationalError:
            return self._known((*tenants, *apps))
        with self._lock:
            for each, name in found.items():
                self._names.put((sharer,), each, name)
        return found

    def recall(
        self, sessions: SessionFactory, sharer: str, *, apps: Collection[str]
    ) -> dict[str, str]:
        """Return the last known names of apps; read those that no page has shown. Blocks if so.

        Weakness: a changed name is the former one until a page reads it.
        """
        known = self._known(apps)
        missing = set(apps) - known.keys()
        return known | self.read(sessions, sharer, apps=missing) if missing else known

    def _known(self, ids: Iterable[str]) -> dict[str, str]:
        with self._lock:
            known = {each: self._names.get(each) for each in ids}
        return {each: name for each, name in known.items() if name is not None}
