"""Fleet file: workers, aliases and tokenizers as JSON, and the task that watches it.

The same content may be a section of the configuration file, which is then watched in its place.
The file is checked every second, off the event loop. A valid change replaces this source's part; an
invalid one is logged once and shown on the cluster page, and the last valid part stays in force. A
replacement by a rename, as editors and Kubernetes do it, counts as a change.

Weakness: a change takes up to two seconds, and a file that is written in two steps may be reported as
invalid in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fairserve.platform.base.validation import text_of
from fairserve.platform.db.schemas import Strict
from fairserve.platform.fleet.fleet import Desired, FleetPart, clashes
from fairserve.platform.fleet.schemas import (
    MAX_ALIASES,
    MAX_WORKERS,
    AliasTargets,
    FileWorkerIn,
    ModelName,
    TokenizerName,
)

logger = logging.getLogger(__name__)

POLL_S = 1.0
SETTLED_S = 2.0
"""Age in seconds of the file's time up to which the content is compared, too."""
MAX_FILE_BYTES = 4 * 1024 * 1024
_SHOWN = 20
"""Maximum number of problems in one message."""


class FleetFileError(ValueError):
    """The file cannot be used. The message names the error and the allowed values."""


class ModelIn(Strict):
    """Settings of a model."""

    tokenizer: TokenizerName
    """Folder or hub id."""


class FleetFileBody(Strict):
    """Content of the file."""

    workers: list[FileWorkerIn] = Field(default_factory=list, max_length=MAX_WORKERS)
    aliases: dict[ModelName, AliasTargets] = Field(default_factory=dict, max_length=MAX_ALIASES)
    models: dict[ModelName, ModelIn] = Field(default_factory=dict, max_length=MAX_WORKERS)


Parse = Callable[[bytes], FleetPart]
"""Parses the content of a file. Raises FleetFileError."""
Where = Callable[[tuple[str | int, ...]], str]
"""Returns the text before a problem, from the place of the wrong value."""


def parse_fleet(content: bytes) -> FleetPart:
    """Parse the content of a file. Raises FleetFileError."""
    if len(content) > MAX_FILE_BYTES:
        raise FleetFileError(f"it is larger than {MAX_FILE_BYTES} bytes")
    try:
        plain = json.loads(content, object_pairs_hook=_without_repetition)
    except UnicodeDecodeError as error:
        raise FleetFileError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise FleetFileError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise FleetFileError("it is nested too deeply") from error
    except ValueError as error:
        raise FleetFileError(str(error)) from error
    return fleet_part(plain)


def fleet_part(plain: Any, where: Where = lambda place: "") -> FleetPart:
    """Return the fleet of a parsed file or section. Raises FleetFileError."""
    try:
        body = FleetFileBody.model_validate(plain)
    except ValidationError as error:
        problems = [where(each["loc"]) + _problem(each) for each in error.errors()]
        raise FleetFileError(_shown(problems)) from error
    part = FleetPart(
        workers=tuple(worker.spec() for worker in body.workers),
        aliases=body.aliases,
        tokenizers={name: model.tokenizer for name, model in body.models.items()},
    )
    declared = {spec.model for spec in part.workers}
    of_models = [f"alias {n!r} has the name of a model" for n in part.aliases if n in declared]
    _reject(clashes(part, Desired()) + of_models)
    return part


def read_fleet(path: Path, parse: Parse = parse_fleet) -> FleetPart:
    """Read and parse the file. Raises FleetFileError, with the path."""
    try:
        return parse(_content(path))
    except (OSError, FleetFileError) as error:
        raise FleetFileError(f"the fleet file {path}: {_text(error)}") from error


class FleetFileWatch:
    """Watches one file. ``apply`` receives a valid part, on the event loop."""

    def __init__(
        self,
        path: Path,
        others: Callable[[], Desired],
        served: Callable[[], set[str]],
        apply: Callable[[FleetPart], None],
        *,
        parse: Parse = parse_fleet,
        poll_s: float = POLL_S,
    ) -> None:
        """``others`` returns the fleet without this file, ``served`` the served models."""
        self.path = path
        self.problem = ""
        """Reason why the current file is not in force; empty if it is."""
        self._others = others
        self._served = served
        self._apply = apply
        self._parse = parse
        self._poll_s = poll_s
        self._stamp: tuple[int, ...] = ()
        self._digest = b""

    async def run(self) -> None:
        """Watch the file until the task is cancelled."""
        while True:
            try:
                await self.check()
            except Exception:
                logger.exception("the check of the fleet file failed")
            await asyncio.sleep(self._poll_s)

    async def check(self) -> None:
        """Apply the file if it has changed or was invalid: a conflict may have been resolved."""
        try:
            part = await asyncio.to_thread(self._read)
            if part is None:
                return
            _reject(clashes(part, self._others(), self._served()))
        except (OSError, FleetFileError) as error:
            problem = _text(error)
            if problem != self.problem:
                logger.error(
                    "the fleet file %s is invalid, the last valid one stays in force: %s",
                    self.path,
                    problem,
                )
            self.problem = problem
            return
        if self.problem:
            logger.info("the fleet file %s is valid again", self.path)
        self.problem = ""
        self._apply(part)

    def _read(self) -> FleetPart | None:
        """Return the part; None if the file is unchanged. Blocks."""
        status = self.path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
        settled = time.time() - status.st_mtime > SETTLED_S
        if stamp == self._stamp and settled and not self.problem:
            return None
        content = _content(self.path)
        digest = hashlib.blake2b(content).digest()
        self._stamp = stamp
        if digest == self._digest and not self.problem:
            return None
        self._digest = digest
        return self._parse(content)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _reject(problems: list[str]) -> None:
    if problems:
        raise FleetFileError(_shown(problems))


def _shown(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    tail = f"; and {more} more" if more > 0 else ""
    return "; ".join(problems[:_SHOWN]) + tail


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice in one object")
    return found


def _problem(error: Any) -> str:
    """Return a pydantic error with its location; for an unknown field also the known ones."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        depth = error["loc"][0] if len(error["loc"]) > 1 else ""
        kinds: dict[str, type[Strict]] = {"workers": FileWorkerIn, "models": ModelIn}
        kind = kinds.get(str(depth), FleetFileBody)
        return f"{where}: unknown; allowed: {', '.join(kind.model_fields)}"
    text = text_of(error)
    return f"{where}: {text}" if where else text


def _text(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
