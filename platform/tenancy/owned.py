"""Operations that tenants and apps have in common: keys, suspension, deletion and restoring.

Methods use the session of the request and do not commit. Changes are audited, and sent to control and
the key cache after the commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy import Select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.keys import KeyOwner
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import NamedPaging, Page
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.keys.service import KeyRing
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.scheduling.events import Event

Row = TypeVar("Row", Tenant, App)
Out = TypeVar("Out", bound=BaseModel)
_NOT_AUDITED = {"id", "tenant_id", "purge_after", "warnings"}


class OwnedRows(ABC, Generic[Row, Out]):
    """The tenants, or the apps of a tenant, within one request."""

    word: ClassVar[str]
    """Name of the kind in messages and in the audit log."""

    def __init__(self, parts: TenancyParts, session: Session, principal: Principal) -> None:
        self._session = session
        self._principal = principal
        self._settings = parts.settings
        self._authenticator = parts.authenticator
        self._control = parts.control
        self._programs = parts.programs
        self._retention = timedelta(days=parts.settings.ledger_retention_days)

    @abstractmethod
    def _find(self, row_id: str, *, lock: bool) -> Row | None:
        """Return a row that the principal may change, deleted or not."""

    @abstractmethod
    def _listed(self, query: NamedPaging) -> Select[Row]:
        """Return the statement of the matching rows, oldest first."""

    @abstractmethod
    def describe_all(self, rows: Sequence[Row]) -> list[Out]:
        """Return the API's view of rows."""

    @abstractmethod
    def _key_owner(self, row: Row) -> KeyOwner:
        """Return the owner of the row's keys."""

    @abstractmethod
    def _check_name(self, name: str) -> None:
        """Raise ConflictError if a row that is not deleted has the name."""

    def describe(self, row: Row) -> Out:
        """Return the API's view of a row."""
        return self.describe_all([row])[0]

    def page(self, query: NamedPaging) -> Page[Out]:
        """Return a page of the matching rows."""
        rows, total = read_page(self._session, self._listed(query), query)
        return Page.of(self.describe_all(rows), total, query)

    def get(self, row_id: str, *, lock: bool = False, live: bool = False) -> Row:
        """Return a row, deleted or not; ``lock`` excludes other writers.

        Raises NotFoundError, also for a row of another tenant, and with ``live`` ConflictError for a
        deleted one.
        """
        row = self._find(row_id, lock=lock)
        if row is None:
            raise NotFoundError(f"there is no such {self.word}", param=f"{self.word}_id")
        if live and row.deleted_at is not None:
            raise ConflictError(f"the {self.word} is deleted; restore it first", code="deleted")
        return row

    def delete(self, row_id: str) -> Row:
        """Mark a row as deleted: its keys and programs end, its name is free. Idempotent."""
        row = self.get(row_id, lock=True)
        if row.deleted_at is None:
            before = self._audited(row)
            row.deleted_at = utc_now()
            self._session.flush()
            self._audit("delete", row, before)
            self._stop_programs(row, "was deleted")
            self._forget_keys(row)
        return row

    def restore(self, row_id: str) -> Row:
        """Restore a deleted row unchanged. Raises ConflictError if its name is taken."""
        row = self.get(row_id, lock=True)
        if row.deleted_at is not None:
            self._check_capacity(new=False)
            self._check_name(row.name)
            before = self._audited(row)
            row.deleted_at = None
            self._session.flush()
            self._audit("restore", row, before)
            self._forget_keys(row)
        return row

    def keys_of(self, row_id: str, *, change: bool = False, live: bool = False) -> KeyRing:
        """Return a row's own keys; ``change`` excludes other writers."""
        return self._key_ring(self.get(row_id, lock=change, live=live))

    # --- parts ------------------------------------------------------------------------------------

    def _check_capacity(self, *, new: bool) -> None:  # tenants have no bound
        """Raise ConflictError if there are too many rows; ``new``: one more is to be created."""

    def _name_taken(self, row: Row, which: str, path: str) -> ConflictError:
        return ConflictError(
            f"{which} has this name; choose another name, or create a key of that {self.word} with"
            f" POST {path}/{row.id}/keys",
            param="name",
        )

    def _set_suspended(self, row: Row, suspended: bool | None) -> bool:
        """Suspend or resume a row; return whether it changed. None changes nothing."""
        if suspended is None or suspended == (row.suspended_at is not None):
            return False
        row.suspended_at = utc_now() if suspended else None
        return True

    def _key_ring(self, row: Row) -> KeyRing:
        return KeyRing(self._session, self._principal, self._authenticator, self._key_owner(row))

    def _post(self, event: Event) -> None:
        after_commit(self._session, lambda: self._control.post(event))

    def _stop_programs(self, row: Row, what: str) -> None:
        reason, which = f"its {self.word} {what}", {f"{self.word}_id": row.id}
        after_commit(self._session, lambda: self._programs.cancel_of(reason, **which))

    def _forget_keys(self, row: Row) -> None:
        which: dict[str, Any] = {f"{self.word}_id": row.id}
        after_commit(self._session, lambda: self._authenticator.forget(**which))

    def _audited(self, row: Row) -> dict[str, Any]:
        return self.describe(row).model_dump(mode="json", exclude=_NOT_AUDITED)

    def _audit(self, action: str, row: Row, before: Mapping[str, Any] | None) -> None:
        audit.record(
            self._session,
            self._principal,
            f"{self.word}.{action}",
            row.id,
            tenant_id=self._key_owner(row).tenant_id,
            before=before,
            after=self._audited(row),
        )
