"""One session per request, one commit at its end, and callbacks after the commit.

An endpoint depends on ``WriteSession`` or ``ReadSession``. The commit precedes the response, so that a
client with a 2xx can read its change. Control and the key cache must not receive a change that is
rolled back: :func:`after_commit` defers such calls until the commit.

A session opens its connection with its first statement: a request that waits for a thread holds none.
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
    """Call ``callback`` after the commit of the session's request; never if it does not commit."""
    session.info.setdefault(_AFTER, []).append(callback)


def write_session(request: Request) -> Iterator[Session]:
    """Provide a session that commits when the endpoint returns and rolls back if it raises.

    Raises ConflictError if another request has created the same object, and UnavailableError if the
    database does not answer.
    """
    factory: SessionFactory = request.app.state.session_factory
    try:
        with factory() as session:
            yield session
            session.commit()
            callbacks = session.info.pop(_AFTER, [])
    except IntegrityError:
        raise ConflictError("another request changed the same object; read it again") from None
    except OperationalError as error:
        raise unavailable() from error
    for callback in callbacks:
        callback()


def read_session(request: Request) -> Iterator[Session]:
    """Provide a read-only session; on SQLite it reads one snapshot."""
    factory: SessionFactory = request.app.state.session_factory
    try:
        with factory() as session:
            yield read_only(session)
    except OperationalError as error:
        raise unavailable() from error


class DatabaseUnavailableError(UnavailableError):
    """The database does not answer, so a request that needs it fails."""


def unavailable() -> DatabaseUnavailableError:
    """Return the error for requests while the database is down."""
    return DatabaseUnavailableError("the database does not answer", headers={"Retry-After": "5"})


# "function": the code after the yield runs before the response is sent, not after.
WriteSession = Annotated[Session, Depends(write_session, scope="function")]
ReadSession = Annotated[Session, Depends(read_session, scope="function")]
