"""Export and erase the data of one end user of a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.control.storage import RowsLedger
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.identity import EndUser, Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.session import unavailable
from fairserve.platform.reporting.user_data import erasure as erasing
from fairserve.platform.reporting.user_data.export import export
from fairserve.platform.reporting.user_data.schemas import ErasedRows, ErasureOut
from fairserve.platform.serving.programs.service import Programs
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.auth import Principal
from fairserve.scheduling.events import ContractChanged, UserChanged

FLUSH_S = 15.0
"""Maximum seconds to store the contents of the journal in the database."""


class UserData:
    """Data of users of the principal's tenant. Methods raise NotFoundError if it does not exist."""

    def __init__(
        self,
        sessions: SessionFactory,
        hasher: KeyHasher,
        ledger: RowsLedger,
        control: ControlInbox,
        programs: Programs,
        principal: Principal,
    ) -> None:
        assert principal.tenant_id is not None
        self._sessions = sessions
        self._hasher = hasher
        self._ledger = ledger
        self._control = control
        self._programs = programs
        self._principal = principal
        self._tenant_id = principal.tenant_id

    def export(self, user: str) -> Iterator[bytes]:
        """Return the stored data as parts of a document. Blocks. Raises UnavailableError."""
        try:
            self._require_tenant()
            self._flush()
        except OperationalError as error:
            raise unavailable() from error
        return export(self._sessions, self._tenant_id, user)

    async def erase(self, user: str) -> ErasureOut:
        """Erase the user; return the counts. Can be repeated. Raises UnavailableError."""
        try:
            erasure = await asyncio.to_thread(self._begin, user)
            await self._programs.cancel_of_user("its user was erased", self._tenant_id, user)
            rows = await asyncio.to_thread(self._erase, erasure, user)
        except IntegrityError as error:
            raise ConflictError("the same user is being erased by another request") from error
        except OperationalError as error:
            raise unavailable() from error
        return ErasureOut(pseudonym=erasure.pseudonym, erased_at=erasure.erased_at, erased=rows)

    def _begin(self, user: str) -> Erasure:
        self._require_tenant()
        with self._sessions.begin() as session:
            self._require_unblocked(session, user)
            return erasing.begin(session, self._hasher, self._principal, user)

    def _erase(self, erasure: Erasure, user: str) -> ErasedRows:
        # All rows from before the erasure are in the database now and can be rewritten.
        self._flush()
        rewriting = erasing.Rewriting(self._sessions, erasure, user)
        settings = rewriting.delete_settings()
        self._control.post(UserChanged(self._tenant_id, user))
        self._control.post(ContractChanged("user", self._tenant_id, user=user))
        return ErasedRows(**settings, **rewriting.rewrite())

    def _require_unblocked(self, session: Session, user: str) -> None:
        """Raise ConflictError for a blocked user: an erasure would remove the operator's block."""
        row = session.get(EndUser, (self._tenant_id, user))
        if row is not None and row.blocked and self._principal.scope != "admin":
            raise ConflictError(
                "the user is blocked; only an operator may erase it", code="user_blocked"
            )

    def _require_tenant(self) -> None:
        with self._sessions() as session:
            if read_only(session).get(Tenant, self._tenant_id) is None:
                raise NotFoundError("there is no such tenant", param="tenant")

    def _flush(self) -> None:
        if not self._ledger.flush(FLUSH_S):
            raise unavailable()
