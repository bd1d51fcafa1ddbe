"""Table of erased users: records of theirs that are still in the journal get their pseudonyms.

The user's id is kept nowhere. Retention deletes a row with the last of the ledger that it is about;
from then on no pseudonym can be traced to its user.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, Base


class Erasure(Base):
    """One per erased user; a user who is erased again keeps its pseudonym."""

    __tablename__ = "erasures"
    __table_args__ = (Index(None, "erased_at"),)

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    user_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of the user's id, under the server's secret key."""
    pseudonym: Mapped[str] = mapped_column(String(ID_CHARS))
    id_key: Mapped[str] = mapped_column(String(64))
    """Random; with it ids that clients chose are replaced, each by the same one at every time."""
    erased_at: Mapped[datetime]
    """Calls accepted until this time are erased."""
