"""One session per request, one commit at the request's edge, and what may happen only after it.

An endpoint takes ``WriteSession`` or ``ReadSession``. The commit happens before the answer is sent,
so that a client that got a 2xx finds what it wrote. Control and the key cache must not learn of a
change that is rolled back: :func:`after_commit` keeps such calls until the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, UnavailableError
from fairserve.platform.db.engine import SessionFactory, read_only

_AFTER = "fairserve_after_commit"


def after_commit(session: Session, callback: Callable[[], object]) -> None:
    """Call this once the session's request has committed; never if it does not."""
    session.info.setdefault(_AFTER, []).append(callback)


def write_session(request: Request) -> Iterator[Session]:
    """Dependency: a session that is committed when the endpoint returns, rolled back if it raises.

    Raises ConflictError where another request has made the same thing, and UnavailableError
    where the database does not answer.
    """
    factory: SessionFactory = request.app.state.session_factory
    try:
        with factory() as session:
            yield session
            session.commit()
            callbacks = session.info.pop(_AFTER, [])
    except IntegrityError:
        raise ConflictError("another request changed the same thing; read it again") from None
    except OperationalError as error:
        raise unavailable() from error
    for callback in callbacks:
        callback()


def read_session(request: Request) -> Iterator[Session]:
    """Dependency: a session that only reads, from one point in time on SQLite."""
    factory: SessionFactory = request.app.state.session_factory
    try:
        with factory() as session:
            yield read_only(session)
    except OperationalError as error:
        raise unavailable() from error


def unavailable() -> UnavailableError:
    """Return the answer while the database is away."""
    return UnavailableError("the database does not answer", headers={"Retry-After": "5"})


# "function": the code after the yield runs before the answer is sent, not after.
WriteSession = Annotated[Session, Depends(write_session, scope="function")]
ReadSession = Annotated[Session, Depends(read_session, scope="function")]
