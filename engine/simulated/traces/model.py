"""Model of a trace: interactions, each a graph of calls with token counts and block ids, never text.

It follows our trace format (``docs/guide/traces.md``); adapters convert files of other formats to it.
Counts are tokens, times seconds.

A call begins ``gap_s`` after the last of its ``deps`` has ended, a root ``gap_s`` after the arrival
of its interaction, so a slow service delays the rest of a run. Block ids are chained: equal ids
mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Scope = Literal["file", "session"]
"""Scope in which block ids compare: the whole file, or one interaction."""


class TraceError(ValueError):
    """A trace cannot be used; the message names the file, the line and the allowed values."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A call of an interaction."""

    call_id: str
    agent: str
    deps: tuple[str, ...]
    """Ids of calls of the same interaction that must end first."""
    gap_s: float
    input_tokens: int
    """Prompt tokens without system tokens; ``in`` of the file includes them."""
    system_tokens: int
    output_tokens: int
    """Output tokens of each sample."""
    samples: int = 1
    """Number of outputs that are generated in parallel from the prompt."""
    blocks: tuple[tuple[int, int], ...] = ()
    """Ids of the prompt's full blocks as runs: (first id, number of ids). The rest of the prompt is
    unique to the call."""

    @property
    def prompt_tokens(self) -> int:
        """Return the input and system tokens."""
        return self.input_tokens + self.system_tokens

    @property
    def block_ids(self) -> Iterator[int]:
        """Yield all block ids, in order of the prompt."""
        for start, count in self.blocks:
            yield from range(start, start + count)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A run of an app for a user."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    arrival_s: float
    calls: tuple[TraceCall, ...]
    """Calls, each after its dependencies."""
    scope: Scope = "file"
    group: str = ""
    """Group in reports, such as ``well-behaved``; empty for none."""
    origin: str = field(default="", compare=False, repr=False)
    """File and line of origin for error messages; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Interactions in the order of arrival."""

    name: str
    block_tokens: int
    interactions: tuple[Interaction, ...]

    def __len__(self) -> int:
        """Return the number of interactions."""
        return len(self.interactions)

    @property
    def calls(self) -> int:
        """Return the number of calls of all interactions."""
        return sum(len(interaction.calls) for interaction in self.interactions)

    def with_interactions(self, interactions: Sequence[Interaction]) -> Trace:
        """Return a trace of this name with these interactions, sorted by arrival (ties: as given)."""
        ordered = sorted(interactions, key=lambda interaction: interaction.arrival_s)
        return replace(self, interactions=tuple(ordered))
