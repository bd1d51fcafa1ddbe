"""Longest prefix match: the waiting call with the most cached tokens goes first (SGLang's LPM).

DLPM paper 4.1, the base of DLPM: at each step the waiting calls are sorted by matched prefix
length, ties by arrival, and added until the memory is full. Departure: above 128 waiting calls
SGLang falls back to first come, first served, because sorting is too expensive there; here it does
not.

Weakness: a client whose prompts share nothing waits as long as others send cached prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.scheduling.local.by_match import ByMatch, WhenFull, check_when_full
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item


@dataclass(frozen=True, slots=True)
class LpmOptions:
    """Options: at a call that does not fit, ``stop`` (the papers) or ``skip`` it."""

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
