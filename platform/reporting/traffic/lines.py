"""Format of a recording, one line per call: counts, times, pseudonyms and block keys, no content.

Names that clients choose (users, runs, calls, agents) are written as keyed hashes. Prompts of one run
share a prefix, so a line has only the block keys that no earlier line of its segment has: ``like``
refers to the line with the longest common prefix, and has its length in blocks. Keys are chained and
salted (:mod:`fairserve.scheduling.locality.block_keys`): equal keys mean equal prefixes, and isolation
domains have no common keys.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

FORMAT = 2
KNOWN_KEYS = 131_072
"""Keys of a segment that are found again, 12 bytes each; a new key displaces the one in its place."""

Keys = npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class CallOfLine:
    """The facts of a call in a line. Times are UTC epoch seconds of one steady clock."""

    run: str
    opened_at: float
    """Start of the run, which distinguishes it from a later one of the same name."""
    call: str
    row: str
    """Id of the ledger's row."""
    deps: tuple[str, ...]
    """Parents, named by the client or inferred by the tracker."""
    stage: int
    tenant: str
    app: str
    user: str
    agent: str | None
    begin_at: float
    end_at: float
    prompt_tokens: int
    system_tokens: int
    output_tokens: int
    """Output tokens of all samples."""
    samples: int


@dataclass(slots=True, eq=False)
class EndedCall(CallOfLine):
    """A call at its end."""

    keys: Sequence[int]


@dataclass(slots=True, eq=False)
class RecordedCall(CallOfLine):
    """A decoded line. Names are pseudonyms."""

    like: RecordedCall | None
    """Call with the longest common prefix."""
    like_blocks: int
    own_keys: Keys
    """Keys of the blocks after the common prefix."""


_PLAIN = {
    "stage": "stage",
    "tenant": "tenant",
    "app": "app",
    "begin": "begin_at",
    "end": "end_at",
    "in": "prompt_tokens",
    "sys": "system_tokens",
    "out": "output_tokens",
    "n": "samples",
}
"""Fields of a call that a line has as they are, by their names in the line."""


def header(block_tokens: int) -> bytes:
    """Return the first line of a segment."""
    return orjson.dumps({"format": FORMAT, "block_tokens": block_tokens}) + b"\n"


class Pseudonyms:
    """Keyed hashes of names that clients choose: equal names have equal hashes under one salt."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def of(self, kind: str, *names: str) -> str:
        """Return 16 hexadecimal digits. ``kind`` distinguishes a user and an agent of the same name."""
        text = "\0".join((kind, *names)).encode()
        return hashlib.blake2b(text, key=self._salt, digest_size=8).hexdigest()


class LineEncoder:
    """Encoder of the lines of one segment, in order. Not thread-safe.

    A key has one place in a table of a fixed size. What is displaced there is written once more.
    """

    def __init__(self, pseudonyms: Pseudonyms, known_keys: int = KNOWN_KEYS) -> None:
        """``known_keys`` is at least 2."""
        self._names = pseudonyms
        self._places = np.uint64(known_keys)
        self._keys = np.arange(1, known_keys + 1, dtype=np.uint64)
        """Written block key of each place; a free place has a key that belongs to another place."""
        self._line_of = np.zeros(known_keys, dtype=np.uint32)
        """Line that has the key of each place, and so the whole prefix before it."""
        self._lines = 0

    def line(self, call: EndedCall) -> bytes:
        """Return the encoded line of a call, with its newline."""
        name = self._names.of
        run = name("run", call.run, repr(call.opened_at))
        keys = np.asarray(call.keys, dtype=np.uint64)
        places = keys % self._places
        known = np.flatnonzero(self._keys[places] == keys)
        shared, like = 0, None
        if len(known):
            shared = int(known[-1]) + 1
            like = [int(self._line_of[places[shared - 1]]), shared]
        own = keys[shared:].astype("<u8").tobytes()
        text = orjson.dumps(
            {
                "run": run,
                "opened": call.opened_at,
                "call": name("call", run, call.call),
                "row": name("row", call.row),
                "deps": [name("call", run, dep) for dep in call.deps],
                "user": name("user", call.tenant, call.user),
                "agent": None if call.agent is None else name("agent", call.app, call.agent),
                **{short: getattr(call, field) for short, field in _PLAIN.items()},
                "like": like,
                "keys": base64.b64encode(own).decode(),
            }
        )
        self._keys[places[shared:]] = keys[shared:]
        self._line_of[places[shared:]] = self._lines
        self._lines += 1
        return text + b"\n"


def decode_lines(lines: Sequence[bytes]) -> tuple[list[RecordedCall], int]:
    """Return the calls of a segment's lines after its header, and the number of damaged lines."""
    calls: list[RecordedCall | None] = []
    for line in lines:
        try:
            calls.append(_decoded(line, calls))
        except (ValueError, KeyError, TypeError, IndexError):
            calls.append(None)
    good = [call for call in calls if call is not None]
    return good, len(calls) - len(good)


def _decoded(line: bytes, before: Sequence[RecordedCall | None]) -> RecordedCall:
    if not line.endswith(b"\n"):
        raise ValueError("the line is incomplete")
    value = orjson.loads(line)
    like, like_blocks = None, 0
    if value["like"] is not None:
        number, like_blocks = value["like"]
        like = before[number]
        if like is None:
            raise ValueError("the line refers to a damaged line")
    return RecordedCall(
        run=value["run"],
        opened_at=value["opened"],
        call=value["call"],
        row=value["row"],
        deps=tuple(value["deps"]),
        user=value["user"],
        agent=value["agent"],
        **{field: value[short] for short, field in _PLAIN.items()},
        like=like,
        like_blocks=like_blocks,
        own_keys=np.frombuffer(base64.b64decode(value["keys"]), dtype="<u8"),
    )
