"""Prompts as agents send them: many share a system prefix and some of what comes after it.

25 trees. A tree is a system prefix with three branches of three branches each, and every prompt follows
one path from the root; the token ids of a tree are fixed. A prompt shares a part of such a path, between
50 and 84 % of its length, drawn evenly (two thirds on average), and goes on with tokens that nobody else
has. Lengths are 1,014 to 4,096 tokens with a mean of 3,076, drawn from a beta distribution that leans
towards long prompts. Everything follows from the seed.

A prompt whose shared part has been seen by nobody yet must compute it once, so the ideal hit rate of a
long sequence is a little below two thirds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairserve.interactions.call import TokenIds

VOCABULARY = 128_000
SHORTEST_TOKENS = 1014
LONGEST_TOKENS = 4096
MEAN_SHARE = 0.669
"""Where the mean length lies between the shortest and the longest: 3,076 in the default range."""
SHARED = (0.50, 0.84)
"""Least and greatest share of a prompt that it has in common with others."""
BRANCHES = 3
_LEVELS = (0.20, 0.25)
"""Length of the system prefix and of the first branches, in longest prompts; on average."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and what they share."""

    token_ids: TokenIds
    tree: int
    shared_tokens: int
    """Leading tokens that follow the tree's path."""
    system_tokens: int
    """Leading tokens of the tree's system prefix."""


@dataclass(frozen=True, slots=True)
class _Tree:
    system_tokens: int
    paths: tuple[TokenIds, ...]
    """One for each leaf; every path is as long as the longest shared part."""


class PromptTrees:
    """An endless sequence of prompts of some trees."""

    def __init__(
        self,
        seed: int,
        trees: int = 25,
        shortest_tokens: int = SHORTEST_TOKENS,
        longest_tokens: int = LONGEST_TOKENS,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._shortest, self._longest = shortest_tokens, longest_tokens
        self._trees = [self._tree() for _ in range(trees)]

    def __len__(self) -> int:
        """Number of trees."""
        return len(self._trees)

    def prompt(self, tree: int) -> Prompt:
        """The next prompt of a tree."""
        random, planted = self._random, self._trees[tree]
        span = self._longest - self._shortest
        length = self._shortest + round(span * random.random() ** (1 / MEAN_SHARE - 1))
        shared = int(length * random.uniform(*SHARED))
        path = planted.paths[random.integers(len(planted.paths))]
        token_ids = np.empty(length, dtype=np.uint32)
        token_ids[:shared] = path[:shared]
        token_ids[shared:] = self._tokens(length - shared)
        return Prompt(token_ids, tree, shared, min(shared, planted.system_tokens))

    def _tree(self) -> _Tree:
        whole = int(self._longest * SHARED[1]) + 1
        system, first = (
            int(self._longest * share * self._random.uniform(0.75, 1.25)) for share in _LEVELS
        )
        prefix = self._tokens(system)
        paths = []
        for _ in range(BRANCHES):
            branch = np.concatenate([prefix, self._tokens(first)])
            rest = whole - len(branch)
            paths += [np.concatenate([branch, self._tokens(rest)]) for _ in range(BRANCHES)]
        return _Tree(system, tuple(paths))

    def _tokens(self, count: int) -> TokenIds:
        return self._random.integers(0, VOCABULARY, size=count, dtype=np.uint32)
