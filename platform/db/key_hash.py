"""The secret key, and the keyed hash under which API keys are stored.

A key has 256 random bits, so a fast hash is enough: HMAC-SHA256 under ``FAIRSERVE_SECRET_KEY``.
Guesses cannot be tested with a copy of the database alone. Two secrets can be valid at once, so that
the secret can be rotated while keys stay valid.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from fairserve.platform.db.settings import MIN_SECRET_CHARS, DbSettings

KEY_FILE = "secret.key"
_NAME_OF_SECRET = b"fairserve: name of this secret key"
_SUBKEYS = b"\xfffairserve: subkeys"
"""No hashed text contains this byte, so no stored hash is a subkey."""


class KeyHasher:
    """Hashes API keys under the current secret and, during a rotation, the previous one."""

    def __init__(self, secret: bytes, previous: bytes | None = None) -> None:
        self._secrets = [secret] if previous is None else [secret, previous]
        self.secret_ids = [self._id(secret) for secret in self._secrets]
        self.secret_id = self.secret_ids[0]

    def __repr__(self) -> str:
        return f"KeyHasher(secret_id={self.secret_id!r})"

    def hash(self, key: str) -> str:
        """Return 64 hexadecimal digits under the current secret."""
        return self._digest(self._secrets[0], key)

    def candidates(self, key: str) -> list[str]:
        """Return the hashes under which the key may be stored, the current secret's first."""
        return [self._digest(secret, key) for secret in self._secrets]

    def subkey(self, label: str, secret_id: str) -> bytes | None:
        """Return 32 bytes for another purpose, derived from the secret of this id; None if that secret
        is no longer valid.
        """
        for secret in self._secrets:
            if self._id(secret) == secret_id:
                of_subkeys = hmac.digest(secret, _SUBKEYS, "sha256")
                return hmac.digest(of_subkeys, label.encode(), "sha256")
        return None

    @staticmethod
    def _digest(secret: bytes, key: str) -> str:
        return hmac.digest(secret, key.encode(), "sha256").hex()

    @staticmethod
    def _id(secret: bytes) -> str:
        return hmac.digest(secret, _NAME_OF_SECRET, "sha256").hex()[:16]


def key_hasher(settings: DbSettings) -> KeyHasher:
    """Return the hasher; generates ``data_dir/secret.key`` for an embedded database.

    Raises ValueError if a shared database is used without ``secret_key``, or the file is unusable.
    """
    if settings.secret_key is not None:
        previous = settings.secret_key_previous
        return KeyHasher(
            settings.secret_key.get_secret_value().encode(),
            previous.get_secret_value().encode() if previous else None,
        )
    require_secret_key(settings)
    return KeyHasher(_secret_in_file(settings.data_dir / KEY_FILE))


def require_secret_key(settings: DbSettings) -> None:
    """Raise ValueError if a shared database is used without ``secret_key``."""
    if settings.secret_key is None and not settings.embedded_database:
        raise ValueError(
            "FAIRSERVE_SECRET_KEY must be set, to the same value on all servers of a shared database"
        )


def _secret_in_file(path: Path) -> bytes:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(48) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # A link fails if another server was faster; a rename would replace its secret.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    secret = path.read_text().strip()
    if len(secret) < MIN_SECRET_CHARS:
        raise ValueError(f"{path} holds no secret key of at least {MIN_SECRET_CHARS} characters")
    return secret.encode()
