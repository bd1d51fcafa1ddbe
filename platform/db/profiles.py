"""Table of the profiles in force, one row per change; an app's highest version is in force.

Declared profiles are in ``token_profiles``. Rows are never changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import NAME_CHARS, TEXT_CHARS, Base

ProfileSource = Literal["declared", "blended", "learned", "pinned"]


class ProfileVersion(Base):
    """A profile that was in force from ``since`` until the next version."""

    __tablename__ = "profile_versions"

    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime]
    source: Mapped[ProfileSource] = mapped_column(String(16))
    profile: Mapped[dict[str, Any]] = mapped_column(JSON)
    """``AppProfile.to_plain``."""
    learned_stages: Mapped[int]
    calls_learned: Mapped[bool]
    reason: Mapped[str] = mapped_column(String(TEXT_CHARS))
    author: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Visible prefix of the key that made the change, or ``system``."""
