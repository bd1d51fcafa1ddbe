"""Preble's local queue: ten groups by hit share; the better groups get more places in a batch.

A call with a cached share ``hit`` of its prompt is in group ``ceil(10 * hit) - 1``; calls without a
hit are in group 0. A step visits the groups from 9 down to 0 and takes at most ``10 * (g + 1)``
calls of group ``g``, in the order of arrival, so calls without a hit are delayed but never starve.

Weakness: it is fair to hit shares, not to clients; and a step ends when the places of all groups
with calls are used up, so a large batch of calls without a hit is filled ten at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.scheduling.local.by_match import ByMatch, WhenFull, check_when_full
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item

GROUPS = 10
PLACES_PER_GROUP = 10
"""Number of places of group 0 in one step; group ``g`` has ``g + 1`` times as many."""


@dataclass(frozen=True, slots=True)
class PrebleGroupsOptions:
    """Options: at a call that does not fit, ``stop`` (until the batch is full) or ``skip`` it."""

    when_full: WhenFull = "stop"

    def __post_init__(self) -> None:
        check_when_full(self.when_full)


def group_of(prompt_tokens: int, matched_tokens: int) -> int:
    """Return ``ceil(10 * hit) - 1`` in integer arithmetic; 0 without a hit."""
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
        """Group being visited; negative when the step is over."""
        self._left = 0
        """Places of this group that are left in this step."""

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
