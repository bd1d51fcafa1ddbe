"""Settings of the database and of the hashing of API keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from fairserve.platform.base.settings import RoomSettings

MIN_SECRET_CHARS = 32


def default_data_dir() -> Path:
    """Return ``$XDG_DATA_HOME/fairserve``, or ``~/.local/share/fairserve``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "fairserve"


class DbSettings(RoomSettings):
    """Location of the data and the secrets that protect it. ``repr`` shows no secret and no URL."""

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder of the embedded database, the journal, the recording, the generated "
        "secret key, the workers' sockets and the built-in model.",
        json_schema_extra={"default_text": "$XDG_DATA_HOME/fairserve or ~/.local/share/fairserve"},
    )
    database_url: str = Field(
        "",
        validation_alias=AliasChoices("FAIRSERVE_DATABASE_URL", "DATABASE_URL"),
        repr=False,
        description="SQLAlchemy URL of the database (postgresql:// or sqlite:///). Empty: a SQLite "
        "file in data_dir.",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Key of the keyed hash under which API keys are stored, at least "
        f"{MIN_SECRET_CHARS} characters. With the embedded database it is generated once, into "
        "data_dir/secret.key.",
    )
    secret_key_previous: SecretStr | None = Field(
        None,
        description="The secret key before a rotation. API keys stored under it are accepted, and "
        "stored again under secret_key when they are used.",
    )
    admin_key: SecretStr | None = Field(
        None,
        description="The first admin key, at least 32 characters. Empty: one is created and "
        "printed once, at the first start.",
    )
    database_lease_s: float = Field(
        60.0,
        ge=3,
        le=3600,
        description="Seconds without an answer of the database after which a server answers new "
        "calls 503. Another server may take over the database after the same time.",
    )
    accept_newer_schema: bool = Field(
        False,
        description="Start on a database whose schema is newer than this version, if this version "
        "can read it: during a rolling upgrade, or after a rollback.",
    )

    @field_validator("secret_key", "secret_key_previous", "admin_key")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if not MIN_SECRET_CHARS <= len(value.get_secret_value()) <= 256:
            raise ValueError(f"must have {MIN_SECRET_CHARS} to 256 characters")
        return value

    @model_validator(mode="after")
    def _check_rotation(self) -> Self:
        if self.secret_key_previous is not None and self.secret_key is None:
            raise ValueError("secret_key_previous needs secret_key")
        return self

    @property
    def effective_database_url(self) -> str:
        """Return ``database_url``, or the URL of the SQLite file in ``data_dir``."""
        return self.database_url or f"sqlite:///{self.data_dir / 'fairserve.sqlite3'}"

    @property
    def embedded_database(self) -> bool:
        """Return whether the database is a SQLite file, used by processes of this machine only."""
        return self.effective_database_url.startswith("sqlite")
