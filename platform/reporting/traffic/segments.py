"""Files of a recording: append-only segments in one folder, bounded in size and age.

A new segment begins at a fixed fraction of the size bound or the retention, so that deleting the oldest
one keeps nearly the allowed amount. Files are not synced: a crash of the machine may lose the last
seconds. Readers need no lock; an incomplete last line is ignored.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from fairserve.platform.reporting.traffic.lines import (
    FORMAT,
    EndedCall,
    LineEncoder,
    Pseudonyms,
    RecordedCall,
    decode_lines,
    header,
)

SEGMENTS = 16
"""Number of segments into which the size bound and the retention are divided."""
SALT_FILE = "salt"
SALT_BYTES = 32


def recording_folder(data_dir: Path) -> Path:
    """Return the folder in which a server with this data folder records."""
    return data_dir / "recording"


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first."""
    return sorted(folder.glob("traffic-*.jsonl"))


def load_salt(folder: Path) -> bytes:
    """Return the secret of the pseudonyms, created by the first call. Raises OSError."""
    path = folder / SALT_FILE
    with contextlib.suppress(FileNotFoundError):
        salt = path.read_bytes()
        if len(salt) == SALT_BYTES:
            return salt
    salt = secrets.token_bytes(SALT_BYTES)
    draft = path.with_name(f"{SALT_FILE}.{secrets.token_hex(4)}")
    with _private(draft) as descriptor:
        os.write(descriptor, salt)
    draft.replace(path)
    return salt


def delete_recording(folder: Path) -> None:
    """Delete all segments and the salt. Raises OSError."""
    for path in [*segment_paths(folder), folder / SALT_FILE]:
        path.unlink(missing_ok=True)


class SegmentWriter:
    """Appends calls to segments; belongs to one thread. All methods raise OSError."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        retention_s: float,
        block_tokens: int,
        wall: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._retention_s = retention_s
        self._block_tokens = block_tokens
        self._wall = wall
        self._encoder: LineEncoder | None = None
        self._pseudonyms: Pseudonyms | None = None
        self._path: Path | None = None
        """Current segment; None before the first call is written."""
        self._begun_at = 0.0
        self._size = 0

    def write(self, calls: list[EndedCall]) -> None:
        """Append calls; an error loses the rest, and the next calls get a new segment."""
        try:
            waiting = deque(calls)
            while waiting:
                self._append(waiting)
        except BaseException:
            self._path = None
            raise
        self.prune()

    def prune(self) -> None:
        """Delete segments beyond the size bound or the retention."""
        now_at = self._wall()
        if self._path is not None and now_at - self._begun_at > self._retention_s / SEGMENTS:
            self._path = None
        paths = segment_paths(self._folder)
        sizes = {path: _size(path) for path in paths}
        total = sum(sizes.values())
        for path in paths:
            too_old = _begun_at(path) < now_at - self._retention_s
            if path != self._path and (too_old or total > self._max_bytes):
                path.unlink(missing_ok=True)
                total -= sizes[path]

    def _append(self, waiting: deque[EndedCall]) -> None:
        """Append calls while the segment has space, at least one."""
        if self._path is None or self._size >= self._max_bytes // SEGMENTS:
            self._begin()
        assert self._encoder is not None
        assert self._path is not None
        with self._path.open("ab") as file:
            while waiting:
                line = self._encoder.line(waiting.popleft())
                file.write(line)
                self._size += len(line)
                if self._size >= self._max_bytes // SEGMENTS:
                    break

    def _begin(self) -> None:
        self.prune()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._pseudonyms is None:
            self._pseudonyms = Pseudonyms(load_salt(self._folder))
        self._encoder = LineEncoder(self._pseudonyms)
        self._begun_at = self._wall()
        number = round(self._begun_at * 1000)
        while (path := self._folder / f"traffic-{number:015d}.jsonl").exists():
            number += 1
        first = header(self._block_tokens)
        with _private(path) as descriptor:
            os.write(descriptor, first)
        self._path, self._size = path, len(first)


def read_recording(folder: Path, since_at: float) -> tuple[list[RecordedCall], int, int]:
    """Return the calls of segments that end after ``since_at``, the block size, and damaged lines.

    A server may be writing at the same time. Raises OSError for an unreadable segment.
    """
    calls: list[RecordedCall] = []
    block_tokens = damaged = 0
    for size, lines in _segments(folder, since_at):
        if block_tokens and size != block_tokens:
            calls.clear()  # keys of another block size are not comparable
        block_tokens = size
        good, bad = decode_lines(lines)
        calls += good
        damaged += bad
    return calls, block_tokens, damaged


def _segments(folder: Path, since_at: float) -> Iterator[tuple[int, list[bytes]]]:
    for path in segment_paths(folder):
        try:
            if path.stat().st_mtime < since_at:
                continue
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            continue  # deleted since the listing
        size = _block_tokens(lines[0]) if lines else None
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # incomplete, or cut by a crash
        if size is not None:
            yield size, lines[1:]


def _block_tokens(first: bytes) -> int | None:
    try:
        value = orjson.loads(first)
        return int(value["block_tokens"]) if value["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        return None


def _begun_at(path: Path) -> float:
    try:
        return int(path.stem.partition("-")[2]) / 1000
    except ValueError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """Create a file that only this user may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
