"""Longest prefix match: the waiting call of which most tokens are cached goes first (SGLang's LPM).

DLPM paper 4.1, the base that DLPM bounds: at each step the waiting calls are sorted by matched prefix
length, ties by arrival, and added until the memory is full. Departure: SGLang falls back to first come
first served above 128 waiting calls, because the order costs it too much; here it stays.

Weakness: a client whose prompts share nothing waits for as long as others send what is cached.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.scheduling.local.by_match import ByMatch, WhenFull, check_when_full
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item


@dataclass(frozen=True, slots=True)
class LpmOptions:
    """Behaviour at a call that does not fit: ``stop`` (the papers) or ``skip`` it."""

    when_full: WhenFull = "stop"

    def __post_init__(self) -> None:
        check_when_full(self.when_full)


class Lpm(ByMatch):
    """The local scheduler of the "LPM" and "RR+LPM" rows."""

    def __init__(self, options: LpmOptions = LpmOptions()) -> None:
        super().__init__(options.when_full)
        self.options = options
        self._order: list[Item] = []

    def _placement(self, matched: MatchedCall, matched_tokens: int) -> tuple[list[Item], int]:
        return self._order, -matched_tokens

    def _begin(self) -> None:
        pass

    def _next(self) -> MatchedCall | None:
        return self._order[0][2] if self._order else None

    def _accepted(self) -> None:
        pass
