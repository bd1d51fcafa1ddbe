"""Infers the dependencies between a run's calls from repeated outputs and from times.

A span names its caller, not the answers that it needed. So a call depends on

- every call whose output occurs in its prompt (*found*) and that had ended when it began;
- every call that had ended when it began and whose output occurs in no prompt at all: a later call
  probably waited for it, and rephrased it;
- if nothing is found, every call that had ended when it began, whether found elsewhere or not: an
  orchestrator sends its helpers a task, not its own words. Exceptions are *siblings* of a call
  whose prompt holds no answer yet: calls of the same agent with the same system prompt that a later
  prompt contains together with it, such as questions asked in turn and compared in the end. If none
  is left, it has no dependencies.

The last two rules consider whole branches: if the spans of two agents overlap, no call of one
depends on a call of the other unless its output is found. Only direct dependencies are kept;
implied ones are dropped.

Weaknesses: without recorded texts only times remain, and calls that followed each other by chance
become a chain. An equal output of two calls creates both dependencies. Shortened or rephrased
quotes are not found. Time grows with the square of a run's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairserve.benchmarks.traces.otel_messages import Messages
from fairserve.benchmarks.traces.otel_spans import Span, SpanKey

SHORTEST_QUOTE_CHARACTERS = 16
"""Minimum characters of an output that is searched for in prompts: ``yes`` occurs in too many."""
ANSWERING_ROLES = ("assistant", "model")


@dataclass(frozen=True, slots=True)
class Answered:
    """A call with the data needed for dependencies."""

    span: Span
    agent: str
    prompt: Messages
    output: Messages
    lineage: tuple[SpanKey, ...]
    """Keys of the spans from the root to this one."""

    @property
    def role(self) -> tuple[str, tuple[str, ...]]:
        """Return agent and system prompt."""
        system = [part for m in self.prompt if m.role == "system" for part in m.parts]
        return self.agent, tuple(system)

    @property
    def continues(self) -> bool:
        """Return True if the prompt holds answers, so that it continues a conversation."""
        return any(message.role in ANSWERING_ROLES for message in self.prompt)


def direct_dependencies(
    calls: Sequence[Answered], spans: Mapping[SpanKey, Span]
) -> list[tuple[int, ...]]:
    """Return for each call the indices of the calls it waited for, ascending.

    ``calls`` are those of one run in the order of start, then end, so indices are below the call's
    own.
    """
    found = _found(calls)
    finders = [0] * len(calls)  # bit masks: the calls that repeat the output of this one
    for index, needed in enumerate(found):
        for other in needed:
            finders[other] |= 1 << index
    roles = [call.role for call in calls]
    dependencies: list[tuple[int, ...]] = []
    implied: list[int] = []  # bit masks: all dependencies of a call, direct or not
    for index, call in enumerate(calls):
        ended = [i for i in range(index) if _ended_before(calls[i], call, spans)]
        if found[index]:
            waited = {i for i in ended if not finders[i]} | found[index]
        else:
            siblings = (
                i for i in ended if roles[i] == roles[index] and finders[i] & finders[index]
            )
            beside = set() if call.continues else set(siblings)
            waited = set(ended) - beside
        direct: list[int] = []
        covered = 0
        for i in sorted(waited, reverse=True):
            if not covered >> i & 1:
                direct.append(i)
                covered |= implied[i] | 1 << i
        dependencies.append(tuple(reversed(direct)))
        implied.append(covered)
    return dependencies


def _found(calls: Sequence[Answered]) -> list[set[int]]:
    """Return for each call the earlier, ended calls whose output its prompt repeats.

    Prompts repeat each other, so each distinct text is searched only once.
    """
    outputs = [
        {text for message in call.output for part in message.parts if (text := part.strip())}
        for call in calls
    ]
    holds: dict[tuple[str, bool], frozenset[int]] = {}
    found: list[set[int]] = []
    for index, call in enumerate(calls):
        needed: set[int] = set()
        for message in call.prompt:
            for part in message.parts:
                key = (part.strip(), message.role in ANSWERING_ROLES)
                if key not in holds:
                    holds[key] = frozenset(
                        i
                        for i, texts in enumerate(outputs)
                        if any(_repeats(*key, output) for output in texts)
                    )
                needed |= holds[key]
        ended_ns = call.span.start_ns
        found.append({i for i in needed if i < index and calls[i].span.end_ns <= ended_ns})
    return found


def _repeats(text: str, is_answer: bool, output: str) -> bool:
    if len(output) < SHORTEST_QUOTE_CHARACTERS:
        return is_answer and text == output
    return output in text


def _ended_before(first: Answered, second: Answered, spans: Mapping[SpanKey, Span]) -> bool:
    """Return True if the branch of ``first`` had ended when that of ``second`` began."""
    if first.span.end_ns > second.span.start_ns:
        return False
    shared = 0
    for one, other in zip(first.lineage, second.lineage, strict=False):
        if one != other:
            break
        shared += 1
    if shared in (len(first.lineage), len(second.lineage)):  # one is an ancestor of the other
        return True
    branch = spans.get(first.lineage[shared], first.span)
    beside = spans.get(second.lineage[shared], second.span)
    return branch.end_ns <= beside.start_ns
