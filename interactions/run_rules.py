"""Rules by which a call is assigned to its run, in their order; each app chooses those that are on.

The first rule that names a run decides. Names come from headers and fields that clients set for us
(``interaction_header``, ``interaction_metadata``), or that frameworks and gateways send anyway. Three
rules name a run only if it exists:

- ``continued_conversation``: the prompt extends the prompt and the answer of an earlier call. The
  call joins a run only if that answer belongs to exactly one.
- ``traceparent``: the same, among the calls of one W3C trace. A trace alone proves nothing: a driver
  that starts a thousand runs may have one trace for all of them, and the first call of a sub-agent
  looks like the first call of another run. So the trace separates equal conversations, and joins none.
- ``previous_response``: the run of the stored response that the call continues.

``whole_trace`` takes a trace as one run, for apps that start a trace for each run. It is off by
default, as is ``prompt_cache_key``, which is often one constant per app.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

RunRule = Literal[
    "interaction_header",
    "interaction_metadata",
    "aliases",
    "traceparent",
    "whole_trace",
    "metadata",
    "conversation",
    "previous_response",
    "continued_conversation",
    "prompt_cache_key",
]
RUN_RULES: tuple[RunRule, ...] = get_args(RunRule)
DEFAULT_RUN_RULES: tuple[RunRule, ...] = tuple(
    rule for rule in RUN_RULES if rule not in ("whole_trace", "prompt_cache_key")
)


def normal_rules(names: Iterable[str]) -> tuple[RunRule, ...]:
    """Return rules in their order, each once. Raises ValueError for an unknown name."""
    wanted = {name.strip() for name in names}
    unknown = sorted(wanted.difference(RUN_RULES))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a rule; allowed: {', '.join(RUN_RULES)}")
    return tuple(rule for rule in RUN_RULES if rule in wanted)


def known_rules(names: Iterable[str]) -> tuple[RunRule, ...]:
    """Return the known rules among stored names, in their order: a newer version may have had more."""
    return normal_rules(set(names).intersection(RUN_RULES))


class Clue(NamedTuple):
    """Clue to the run of a call, by one rule; exactly one of the other fields is set."""

    rule: RunRule
    name: int = 0
    """Hash of an id that a run has. If no live run has it, the call begins one, and later clues do
    not count."""
    scope: int | None = None
    """Scope of answers among which the call's conversation may find its run."""
    run_id: str = ""
    """The core's id of the run."""


ANY_ANSWER = 0
"""Scope of all answers of a user."""


def clue_hash(rule: RunRule, value: str) -> int:
    """Return the hash of a client's id under a rule, over 0; ids of different rules never meet."""
    digest = hashlib.blake2b(f"{rule}\0{value}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") or 1
