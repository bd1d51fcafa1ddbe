"""Store new keys and signing secrets, each once, in a file that only its owner reads.

A file is named by the names of its object. It is written as soon as the server has answered, and never
over another one. As a Kubernetes Secret it is a manifest of one Secret, so that each app mounts its own.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from unicodedata import combining, normalize
from urllib.parse import urlsplit

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.server.apply.plan import Key

MAX_PART_CHARS = 60
HASH_CHARS = 8
BLOCK_BYTES = 4096
"""Space that a file takes on a disk."""


class KeyFiles:
    """The files of one folder."""

    def __init__(self, folder: Path, *, kubernetes: bool) -> None:
        """With ``kubernetes`` a file is the manifest of a Secret."""
        self._folder = folder
        self._kubernetes = kubernetes

    def prepare(self, keys: Iterable[Key]) -> None:
        """Make the folder, and check that each object can get a new file. Raises CommandError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(
                f"--keys {self._folder} cannot be made: {error.strerror}", FAILED
            ) from None
        owners: dict[Path, Key] = {}
        for key in keys:
            path = self._path(key)
            if path in owners:
                # Two folders would not help Kubernetes: a Secret has the name of its file.
                or_apart = (
                    "" if self._kubernetes else ", or declare them in two runs with two folders"
                )
                raise CommandError(
                    f"{owners[path]} and {key} would both have the file {path}; rename one{or_apart}",
                    FAILED,
                )
            if path.exists():
                raise CommandError(f"{path} exists; move it away before {key} is created", FAILED)
            owners[path] = key
        self._try_to_write(len(owners))

    def _try_to_write(self, files: int) -> None:
        """Write as much as that many files, and delete it: a key that cannot be written is lost."""
        try:
            with TemporaryFile(dir=self._folder) as file:
                file.write(bytes(files * BLOCK_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CommandError(
                f"--keys {self._folder} cannot be written to: {error.strerror}", FAILED
            ) from None

    def store(self, key: Key, secret: str) -> Path:
        """Write the secret of a new object; return its file. Raises CommandError."""
        path = self._path(key)
        text = self._manifest(key, secret) if self._kubernetes else f"{secret}\n"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CommandError(
                f"{path} cannot be written: {error.strerror}; the secret of {key} is lost,"
                f" make another one: {renewal(key)}",
                FAILED,
            ) from None
        return path

    def _path(self, key: Key) -> Path:
        ending = "yaml" if self._kubernetes else "secret" if key.kind == "webhook" else "key"
        return self._folder / f"{_stem(key)}.{ending}"

    def _manifest(self, key: Key, secret: str) -> str:
        import yaml

        field = "signing-secret" if key.kind == "webhook" else "api-key"
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"fairserve-{_stem(key)}"},
            "type": "Opaque",
            "stringData": {field: secret},
        }
        return str(yaml.safe_dump(manifest, sort_keys=False))


def renewal(key: Key) -> str:
    """Return the command that makes another key or signing secret of an object."""
    tenant, *names = map(shlex.quote, key.names)
    if key.kind == "webhook":
        url = "URL" if "?" in key.names[1] else names[0]  # its query may hold a secret
        return f"fairserve webhook rotate {url} --tenant {tenant}"
    if key.kind == "app":
        return f"fairserve key create --app {names[0]} --tenant {tenant}"
    return f"fairserve key create --tenant-id {tenant}"


def _stem(key: Key) -> str:
    """Return the name of an object as part of a file's name, and of a name in Kubernetes."""
    names = list(key.names)
    if key.kind == "webhook":
        url = urlsplit(names[1])
        names[1:] = ["webhook", f"{url.hostname or ''}{url.path}"]
    return ".".join(map(_part, names))


def _part(name: str) -> str:
    """Return a name in letters from a to z, digits and hyphens; one of other letters has a hash."""
    plain = "".join(char for char in normalize("NFKD", name.lower()) if not combining(char))
    part = re.sub(r"[^a-z0-9]+", "-", plain)[:MAX_PART_CHARS].strip("-")
    if any(char.isalnum() and not char.isascii() for char in plain):
        part += "-" + sha256(name.encode()).hexdigest()[:HASH_CHARS]
    return part.strip("-") or "x"
