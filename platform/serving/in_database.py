"""Work of requests on the database, which runs in a thread because it blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.session import unavailable

P = ParamSpec("P")
T = TypeVar("T")


async def in_database(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run work on the database in a thread. Raises UnavailableError while the database is away."""
    try:
        return await to_its_end(work, *arguments, **options)
    except OperationalError as error:
        raise unavailable() from error


async def read_in(sessions: SessionFactory, read: Callable[[Session], T]) -> T:
    """Return the result of ``read``, as :func:`in_database`."""

    def work() -> T:
        with sessions() as session:
            return read(read_only(session))

    return await in_database(work)


async def write_in(sessions: SessionFactory, write: Callable[[Session], T]) -> T:
    """Return the result of ``write`` after its commit, as :func:`in_database`."""

    def work() -> T:
        with sessions.begin() as session:
            return write(session)

    return await in_database(work)
