"""Table of erased users: their records that are still in the journal get pseudonyms.

The user's id is not stored. Retention deletes a row together with the last ledger row of the user;
afterwards no pseudonym can be traced to its user.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.upsert import fitting_text


class Erasure(Base):
    """An erased user; a repeated erasure keeps the pseudonym."""

    __tablename__ = "erasures"
    __table_args__ = (Index(None, "erased_at"),)

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    user_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of the user's id, under the server's secret key."""
    pseudonym: Mapped[str] = mapped_column(String(ID_CHARS))
    id_key: Mapped[str] = mapped_column(String(64))
    """Random key that maps each id chosen by the client to a fixed replacement."""
    erased_at: Mapped[datetime]
    """Calls accepted until this time are erased."""


def user_hashes(hasher: KeyHasher, user: str) -> list[str]:
    """Return the possible hashes of a user in ``erasures``, the current secret's first."""
    return hasher.candidates(fitting_text(user, NAME_CHARS))


def erased_since(
    session: Session, hasher: KeyHasher, tenant: str, user: str, time: datetime
) -> bool:
    """Return whether a user was erased at this time or later."""
    found = select(Erasure.tenant_id).where(
        Erasure.tenant_id == tenant,
        Erasure.user_hash.in_(user_hashes(hasher, user)),
        Erasure.erased_at >= time,
    )
    return session.execute(found).first() is not None
