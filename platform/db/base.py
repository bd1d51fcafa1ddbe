"""Common parts of all tables: the declarative base, UTC timestamps, constraint names, random ids.

Every string column has a bound, so that PostgreSQL and SQLite agree on what fits
(:data:`NAME_CHARS` and the like are also the limits of the API's schemas).
"""

from __future__ import annotations

import os
from collections import deque
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import DateTime, Dialect, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.user_ids import USER_ID_CHARS

ID_CHARS = 64
"""Maximum length of generated ids: tenants, apps, keys, calls, interactions."""
NAME_CHARS = USER_ID_CHARS
"""Maximum length of names that people choose, and of end users' ids."""
TEXT_CHARS = 1000
"""Maximum length of error texts."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite stores no time zone; reading adds it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC. Raises ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("the time has no time zone; use an aware datetime")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return a stored time as an aware one in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables; constraint names are fixed, because SQLite's batch migrations need them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {datetime: UtcDateTime()}


def utc_now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.fromtimestamp(utc_s(), UTC)


class _RandomBytes:
    """Random bytes of the system, read some at a time: a call needs three ids. Any thread."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()

    def take(self) -> bytes:
        """Return 10 bytes that nobody else gets."""
        while True:
            try:
                return self._parts.popleft()
            except IndexError:
                drawn = os.urandom(4096)
                self._parts.extend(drawn[at : at + 10] for at in range(0, 4090, 10))

    def forget(self) -> None:
        """Drop what is left: after a fork the parent has it, too."""
        self._parts.clear()


_random = _RandomBytes()
os.register_at_fork(after_in_child=_random.forget)


def new_id(prefix: str) -> str:
    """Return a URL-safe id such as ``tn_019c...``: 48 bits of time in ms, then 80 random bits.

    Ids of one time are neighbours in an index: a batch of rows changes a few of its pages, not one for
    each row. Departure from UUID version 7: no version bits. An id shows when it was made.
    """
    return f"{prefix}_{int(utc_s() * 1000):012x}{_random.take().hex()}"


def utc_time(epoch_s: float) -> datetime:
    """Return the time of UTC epoch seconds. Raises ValueError beyond the years that a time can have."""
    try:
        return datetime.fromtimestamp(epoch_s, UTC)
    except (OSError, OverflowError) as error:
        # An OSError would look like a system that fails.
        raise ValueError(f"{epoch_s} is no time in UTC epoch seconds") from error
