"""Encoder that cuts prompts into pieces and keeps their ids: a longer conversation encodes what is new.

A rendered chat is cut before tokens of its template, such as ``<|im_start|>``. A tokenizer splits each
text at its added tokens before it does anything else, and treats each part for itself, so the ids of a
text are those of its pieces, one after the other. This holds for tokens that no other added token
overlaps and that absorb no white space (:func:`cut_tokens`). Each piece but the first begins with one,
because some tokenizers treat the beginning of a text differently. A client that writes such a token in
a message moves cuts, never ids.

Pieces are kept by tenant, so the time of a call does not show what another tenant sent.

Cost of a prompt of 9,000 tokens whose pieces are kept: 0.1 ms; of a new one 30 ms. Weakness: a prompt
without such tokens is one piece, which only an equal prompt finds. Ids of a piece become a list in one
step of the interpreter, which holds the event loop for 1 ms from about 30,000 tokens on.
"""

from __future__ import annotations

import re
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np

from fairserve.interactions.call import TokenIds
from fairserve.interactions.tracking.shared_table import SharedTable

LEAST_CHARS = 256
"""Least characters of a piece that is kept, and between two cuts: shorter ones are quickly encoded."""
MAX_BYTES = 32 << 20
"""Bytes of the kept pieces of a model: texts, ids, and ENTRY_BYTES for each."""
ENTRY_BYTES = 700
KEPT_S = 600.0
"""Seconds for which a piece is kept."""
WAIT_S = 0.0005
"""Maximum wait for the table in seconds, after which a piece counts as new."""


class Piece(NamedTuple):
    """The token ids of a part of a prompt."""

    ids: bytes
    """32-bit integers."""
    before: int | None = 0
    """Tokens before the marked character; None if it is in no token."""


Key = tuple[str, str, int]
"""Tenant, text, and position of the marked character in it; 0 if none is marked."""


class PieceTable:
    """Recent pieces of all tenants; a full table loses the oldest of the tenant that has most bytes.

    Thread-safe. An operation takes a few microseconds. Weakness: pieces expire only when others are put.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pieces: SharedTable[Key, Piece] = SharedTable(max_bytes)
        self._clock = clock
        self._lock = threading.Lock()

    def get(self, key: Key) -> Piece | None:
        """Return a piece that has not expired."""
        if not self._lock.acquire(timeout=WAIT_S):
            return None
        try:
            return self._pieces.get(key, self._clock())
        finally:
            self._lock.release()

    def put(self, key: Key, piece: Piece) -> None:
        """Keep a piece."""
        tenant, text, _ = key
        size = getsizeof(text) + getsizeof(piece.ids) + ENTRY_BYTES
        if not self._lock.acquire(timeout=WAIT_S):
            return
        try:
            now_s = self._clock()
            self._pieces.expire(now_s)
            self._pieces.put((tenant,), key, piece, now_s + KEPT_S, size=size)
        finally:
            self._lock.release()


class PieceEncoder:
    """Encodes prompts with one tokenizer; the ids are those of the whole text. Thread-safe."""

    def __init__(self, backend: Any, template: str, table: PieceTable | None = None) -> None:
        """``backend`` is a ``tokenizers.Tokenizer`` that neither truncates nor pads."""
        self._backend = backend
        self._table = PieceTable() if table is None else table
        cuts = cut_tokens(backend, template)
        self._cuts = re.compile("|".join(map(re.escape, cuts))) if cuts else None
        self._adds = backend.num_special_tokens_to_add(False)

    def encode(
        self, text: str, tenant: str, *, special: bool = False, mark: int = 0
    ) -> tuple[TokenIds, int | None]:
        """Return the ids of a text, and how many of them precede the character at ``mark``.

        The number is None if no token has the character. With ``special`` the tokenizer adds its special
        tokens; if it has any, the text is encoded as a whole.
        """
        if special and self._adds:
            pieces = [self._marked(text, mark, special=True)]
            before = pieces[0].before if mark else 0
        else:
            bounds = self._bounds(text, mark)
            keys = [
                (tenant, text[begin:end], mark - begin if begin < mark < end else 0)
                for begin, end in pairwise(bounds)
            ]
            pieces = self._of(keys)
            before = _before(pieces, bounds, mark)
        ids = b"".join([piece.ids for piece in pieces])
        return np.frombuffer(ids, dtype=np.uint32), before

    def _bounds(self, text: str, mark: int) -> list[int]:
        """Return where the pieces begin, and the end of the text."""
        bounds = [0]
        if self._cuts is not None:
            for found in self._cuts.finditer(text):
                at = found.start()
                if at - bounds[-1] >= LEAST_CHARS or 0 < at == mark:
                    bounds.append(at)
        bounds.append(len(text))
        return bounds

    def _of(self, keys: Sequence[Key]) -> list[Piece]:
        """Return the pieces, of which those that are new are encoded together."""
        found = [self._table.get(key) if len(key[1]) >= LEAST_CHARS else None for key in keys]
        new = [key for key, piece in zip(keys, found, strict=True) if piece is None]
        texts = [text for _, text, mark in new if not mark]
        # A batch is encoded without the interpreter's lock, a single text with it.
        batch = iter(self._backend.encode_batch_fast(texts, add_special_tokens=False))
        for number, key in enumerate(keys):
            if found[number] is None:
                _, text, mark = key
                piece = self._marked(text, mark) if mark else Piece(_bytes(next(batch)))
                if len(text) >= LEAST_CHARS:
                    self._table.put(key, piece)
                found[number] = piece
        return [piece for piece in found if piece is not None]

    def _marked(self, text: str, mark: int, *, special: bool = False) -> Piece:
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=special)
        return Piece(_bytes(encoding), encoding.char_to_token(mark))


def cut_tokens(backend: Any, template: str) -> list[str]:
    """Return the added tokens of a template before which every text may be cut."""
    added = list(backend.get_added_tokens_decoder().values())
    if backend.encode_special_tokens or any(token.single_word for token in added):
        return []  # special tokens are encoded as text, or what is beyond a cut decides
    return [
        token.content
        for token in added
        if token.content in template
        and not (token.normalized or token.lstrip or token.rstrip)
        and not (token.content[:1].isspace() or token.content[-1:].isspace())
        and not any(_overlaps(token.content, other.content) for other in added)
    ]


def _overlaps(token: str, other: str) -> bool:
    """Return whether ``other`` may cover a part of a text in which ``token`` begins."""
    if token != other and token in other:
        return True
    return any(other.endswith(token[:size]) for size in range(1, min(len(token), len(other))))


def _before(pieces: Sequence[Piece], bounds: Sequence[int], mark: int) -> int | None:
    """Return the number of tokens before a character of the whole text."""
    tokens = 0
    for piece, (begin, end) in zip(pieces, pairwise(bounds), strict=True):
        if mark < end:
            if mark <= begin:
                return tokens
            return None if piece.before is None else tokens + piece.before
        tokens += len(piece.ids) // 4
    return tokens


def _bytes(encoding: Any) -> bytes:
    return array("I", encoding.ids).tobytes()
