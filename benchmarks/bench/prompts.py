"""Prompts like those of agents: many share a system prefix and some of the text after it.

There are 25 trees. A tree is a system prefix (12 to 20 % of the longest prompt) with three branches
(20 to 28 % more) of three branches each (28 to 38 % more); its token ids and lengths are fixed. A
prompt follows one path from the root to the end of one of its three levels and continues with
unique tokens, like a filled-in template: prompts diverge only at the ends of levels. The level is
the one whose end is nearest to a share of the prompt's length that is drawn evenly from 54 to 85 %;
as a result 65 % of all tokens are shared, 27 to 90 % of a prompt. Lengths are 1,014 to 4,096 tokens
with a mean of 3,076, drawn from a beta distribution that favours long prompts. Everything is
determined by the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairserve.interactions.call import TokenIds

VOCABULARY = 128_000
SHORTEST_TOKENS = 1014
LONGEST_TOKENS = 4096
MEAN_SHARE = 0.669
"""Position of the mean length between the shortest and the longest: 3,076 in the default range."""
SHARED = (0.54, 0.85)
"""Range of the shared fraction of a prompt; the nearest end of a level is used."""
MOST_SHARED = 0.9
"""Maximum shared fraction of a prompt."""
BRANCHES = 3
_LEVELS = ((0.12, 0.20), (0.20, 0.28), (0.28, 0.38))
"""Minimum and maximum length of each level's segments, relative to the longest prompt."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """Token ids of a prompt, and the number of shared ones."""

    token_ids: TokenIds
    tree: int
    shared_tokens: int
    """Leading tokens that follow the tree's path."""
    system_tokens: int
    """Leading tokens of the tree's system prefix."""


@dataclass(frozen=True, slots=True)
class _Path:
    token_ids: TokenIds
    ends: tuple[int, ...]
    """End of each level, in tokens."""


class PromptTrees:
    """An endless sequence of prompts of some trees."""

    def __init__(self, seed: int, trees: int = 25) -> None:
        self._random = np.random.default_rng(seed)
        self._trees = [self._tree() for _ in range(trees)]

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self._trees)

    def prompt(self, tree: int) -> BenchPrompt:
        """Return the next prompt of a tree."""
        random, paths = self._random, self._trees[tree]
        span = LONGEST_TOKENS - SHORTEST_TOKENS
        length = SHORTEST_TOKENS + round(span * random.random() ** (1 / MEAN_SHARE - 1))
        wanted = length * random.uniform(*SHARED)
        path = paths[random.integers(len(paths))]
        ends = [end for end in path.ends if end <= length * MOST_SHARED]
        shared = min(ends, key=lambda end: abs(end - wanted))
        token_ids = np.empty(length, dtype=np.uint32)
        token_ids[:shared] = path.token_ids[:shared]
        token_ids[shared:] = self._tokens(length - shared)
        return BenchPrompt(token_ids, tree, shared, path.ends[0])

    def _tree(self) -> list[_Path]:
        paths = [_Path(self._tokens(0), ())]
        for level, shares in enumerate(_LEVELS):
            branches = BRANCHES if level else 1
            paths = [self._longer(path, shares) for path in paths for _ in range(branches)]
        return paths

    def _longer(self, path: _Path, shares: tuple[float, float]) -> _Path:
        more = self._tokens(int(LONGEST_TOKENS * self._random.uniform(*shares)))
        token_ids = np.concatenate([path.token_ids, more])
        return _Path(token_ids, (*path.ends, len(token_ids)))

    def _tokens(self, count: int) -> TokenIds:
        return self._random.integers(0, VOCABULARY, size=count, dtype=np.uint32)
