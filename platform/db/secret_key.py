"""The database remembers which secret key its API keys were made with.

API keys are stored as hashes under the secret key. Without it every key answers 401, and a server that
made itself a new one would look well while nobody can use it. So the key's id, which gives nothing of
it away, is kept in the database, and a server with another key does not start. A rotation names the
former key beside the new one (``FAIRSERVE_SECRET_KEY_PREVIOUS``), and the id follows.

Weakness: a database of before this check is judged by the API keys that it holds.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import CursorResult, select, update
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
    """The secret key is not that of this database. The message says what to do."""


def check_secret_key(sessions: SessionFactory, settings: DbSettings) -> KeyHasher:
    """The hasher of the secret key, which the database knows from now on.

    Makes the key of an embedded database that has none. Raises SecretKeyError, and ValueError as
    :func:`~fairserve.platform.db.key_hash.key_hasher` does.
    """
    with sessions.begin() as session:
        known = _known_ids(session)
        file = _key_file(settings)
        if known and file is not None and not file.exists():
            raise SecretKeyError(_problem(f"the secret key {file} is missing"))
        hasher = key_hasher(settings)
        if known and not known & set(hasher.secret_ids):
            where = "FAIRSERVE_SECRET_KEY" if file is None else f"the secret key {file}"
            raise SecretKeyError(_problem(f"{where} is another one"))
        _remember(session, hasher)
    return hasher


def replace_secret_key(sessions: SessionFactory, settings: DbSettings) -> tuple[int, str]:
    """Accept the present secret key in place of one that is lost, and make one where there is none.

    Revokes the API keys that were made with the lost one. Returns how many, and a new admin key, to be
    shown once. Raises SecretKeyError where no key is lost.
    """
    with sessions.begin() as session:
        hasher = key_hasher(settings)
        known = _known_ids(session)
        if not known or known & set(hasher.secret_ids):
            raise SecretKeyError(
                "the API keys in the database were made with the present secret key: nothing is lost"
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


def _known_ids(session: Session) -> set[str]:
    """The id of the secret key, or those of the valid API keys where it is not recorded yet."""
    fact = session.get(InstallationFact, _FACT)
    if fact is not None:
        return {fact.value}
    valid = select(ApiKey.secret_id).where(ApiKey.revoked_at.is_(None)).distinct()
    return set(session.scalars(valid))


def _remember(session: Session, hasher: KeyHasher) -> None:
    fact = session.get(InstallationFact, _FACT)
    if fact is None:
        fact = InstallationFact(name=_FACT, value="", recorded_at=utc_now())
        session.add(fact)
    if fact.value != hasher.secret_id:
        fact.value, fact.recorded_at = hasher.secret_id, utc_now()


def _key_file(settings: DbSettings) -> Path | None:
    """Where the secret key is, if it is not a setting."""
    return settings.data_dir / KEY_FILE if settings.secret_key is None else None


def _problem(what: str) -> str:
    return (
        f"{what}, and no API key of the database works without the one that they were made with:"
        f" restore it from a backup, or set FAIRSERVE_SECRET_KEY to it; if it is lost, run"
        f" `{REPLACE_COMMAND}`, which revokes these keys and prints a new admin key"
    )
