"""Preble's local queue: ten groups by hit share, the better groups getting more places in a batch.

A call of whose prompt a share ``hit`` is cached is in group ``ceil(10 * hit) - 1``, those without a hit
in group 0. A step visits the groups from 9 down to 0 and takes at most ``10 * (g + 1)`` calls of group
``g``, in order of arrival; so calls without a hit are delayed and never starved.

Weakness: it is not fair to clients, only to hit shares; and a step ends when the shares of the groups
that have calls are used up, so a large batch of calls without a hit is filled ten at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.scheduling.local.by_match import ByMatch, WhenFull, check_when_full
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item

GROUPS = 10
PLACES_PER_GROUP = 10
"""Places of group 0 in one step; group ``g`` has ``g + 1`` times as many."""


@dataclass(frozen=True, slots=True)
class PrebleGroupsOptions:
    """Behaviour at a call that does not fit: ``stop`` (until the batch is full) or ``skip`` it."""

    when_full: WhenFull = "stop"

    def __post_init__(self) -> None:
        check_when_full(self.when_full)


def group_of(prompt_tokens: int, matched_tokens: int) -> int:
    """Return ``ceil(10 * hit) - 1`` in whole numbers, 0 without a hit."""
    if prompt_tokens <= 0:
        return 0
    share = -(-GROUPS * min(matched_tokens, prompt_tokens) // prompt_tokens)
    return max(0, share - 1)


class PrebleGroups(ByMatch):
    """The local scheduler of the "Preble" row."""

    def __init__(self, options: PrebleGroupsOptions = PrebleGroupsOptions()) -> None:
        super().__init__(options.when_full)
        self.options = options
        self._groups: list[list[Item]] = [[] for _ in range(GROUPS)]
        self._group = -1
        """The group visited now; below 0 the step is over."""
        self._left = 0
        """Places left in this step."""

    def _placement(self, matched: MatchedCall, matched_tokens: int) -> tuple[list[Item], int]:
        return self._groups[group_of(matched.call.prompt_tokens, matched_tokens)], 0

    def _begin(self) -> None:
        self._visit(GROUPS - 1)

    def _visit(self, group: int) -> None:
        self._group = group
        self._left = PLACES_PER_GROUP * (group + 1)

    def _next(self) -> MatchedCall | None:
        while self._group >= 0:
            group = self._groups[self._group]
            if group and self._left:
                return group[0][2]
            self._visit(self._group - 1)
        return None

    def _accepted(self) -> None:
        self._left -= 1
