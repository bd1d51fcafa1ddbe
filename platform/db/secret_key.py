"""Check that the secret key is the one with which the database's API keys were hashed.

API keys are stored as hashes under the secret key. With another secret key every API key gets 401,
although the server seems healthy. The database therefore stores an id of the secret key that reveals
nothing about it, and a server with another key does not start. A rotation configures the former key
beside the new one (``FAIRSERVE_SECRET_KEY_PREVIOUS``) and updates the id.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import CursorResult, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.key_hash import KEY_FILE, KeyHasher, key_hasher
from fairserve.platform.db.keys import issue
from fairserve.platform.db.operations import InstallationFact
from fairserve.platform.db.settings import DbSettings

REPLACE_COMMAND = "fairserve db replace-secret-key"
_FACT = "secret_id"


class SecretKeyError(Exception):
    """The secret key is not that of this database. The message names the next step."""


def check_secret_key(sessions: SessionFactory, settings: DbSettings) -> KeyHasher:
    """Return the hasher of the secret key, after recording the key's id in the database.

    Generates the key of an embedded database that has none. Raises SecretKeyError, and ValueError as
    :func:`~fairserve.platform.db.key_hash.key_hasher` does.
    """
    try:
        return _recorded(sessions, settings)
    except IntegrityError:  # another server has recorded its key in between: it may be the same
        return _recorded(sessions, settings)


def _recorded(sessions: SessionFactory, settings: DbSettings) -> KeyHasher:
    with sessions.begin() as session:
        hasher = _matching_hasher(session, settings)
        _remember(session, hasher)
    return hasher


def matching_secret_id(session: Session, settings: DbSettings) -> str | None:
    """Return the id of the secret key if it is that of the database, and change nothing.

    Returns None for an embedded database that has no key yet, which the first start generates. Raises as
    :func:`check_secret_key` does.
    """
    file = _key_file(settings)
    if file is not None and not file.exists() and _known_id(session) is None:
        if not settings.embedded_database:
            key_hasher(settings)  # raises: a shared database needs the setting
        return None
    return _matching_hasher(session, settings).secret_id


def _matching_hasher(session: Session, settings: DbSettings) -> KeyHasher:
    known = _known_id(session)
    file = _key_file(settings)
    if known is not None and file is not None and not file.exists():
        raise SecretKeyError(_problem(f"the secret key {file} is missing"))
    hasher = key_hasher(settings)
    if known is not None and known not in hasher.secret_ids:
        where = "FAIRSERVE_SECRET_KEY" if file is None else f"the secret key {file}"
        raise SecretKeyError(_problem(f"{where} is not the key of this database"))
    return hasher


def replace_secret_key(sessions: SessionFactory, settings: DbSettings) -> tuple[int, str]:
    """Accept the current secret key in place of a lost one; generate one if there is none.

    Revokes the API keys that were hashed with the lost key. Returns their number and a new admin key,
    which is shown once. Raises SecretKeyError if no key is lost.
    """
    with sessions.begin() as session:
        hasher = key_hasher(settings)
        known = _known_id(session)
        if known is None or known in hasher.secret_ids:
            raise SecretKeyError(
                "the API keys in the database were hashed with the current secret key: nothing is lost"
            )
        statement = (
            update(ApiKey)
            .where(ApiKey.revoked_at.is_(None), ApiKey.secret_id.not_in(hasher.secret_ids))
            .values(revoked_at=utc_now())
        )
        revoked = session.execute(statement)
        assert isinstance(revoked, CursorResult)
        admin = issue(session, hasher, "admin", name="after the loss of the secret key")
        _remember(session, hasher)
    return revoked.rowcount, admin.plain


def _known_id(session: Session) -> str | None:
    """Return the recorded id of the secret key; None before the first start."""
    fact = session.get(InstallationFact, _FACT)
    return None if fact is None else fact.value


def _remember(session: Session, hasher: KeyHasher) -> None:
    fact = session.get(InstallationFact, _FACT)
    if fact is None:
        fact = InstallationFact(name=_FACT, value="", recorded_at=utc_now())
        session.add(fact)
    if fact.value != hasher.secret_id:
        fact.value, fact.recorded_at = hasher.secret_id, utc_now()


def _key_file(settings: DbSettings) -> Path | None:
    """Return the file of the secret key; None if a setting contains the key."""
    return settings.data_dir / KEY_FILE if settings.secret_key is None else None


def _problem(what: str) -> str:
    return (
        f"{what}, and API keys work only with the secret key that they were hashed with:"
        f" restore it from a backup, or set FAIRSERVE_SECRET_KEY to it; if it is lost, run"
        f" `{REPLACE_COMMAND}`, which revokes these keys and prints a new admin key"
    )
