"""Which calls of a run waited for which, told by what their prompts repeat and by when they began.

A span says who called it, not whose answer it needed. So a call depends on

- every call whose output occurs in its prompt (*found*) and that had ended when it began;
- every call that had ended when it began and whose output occurs in no prompt at all: somebody must
  have waited for it, and passed it on in other words;
- where nothing is found, every call that had ended when it began, found elsewhere or not: an
  orchestrator sends its helpers a task, not its own words. Except *siblings* of a call whose prompt
  holds no answer yet: calls of the same agent with the same system prompt that a later prompt puts
  beside it, such as questions asked in turn and compared in the end. If none is left, it depends on
  nothing.

The last two look at whole branches: where the spans of two agents overlap, no call of one waits for the
other's unless its output is found. Only direct dependencies stay: those that another one implies are
dropped.

Weaknesses: without recorded texts only times are left, and calls that merely happened to follow each
other become a chain. An output that two calls gave alike makes both needed. Shortened or rephrased
quotes are not found. Time grows with the square of a run's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairserve.engine.simulated.traces.otel_messages import Messages
from fairserve.engine.simulated.traces.otel_spans import Span, SpanKey

SHORTEST_QUOTE_CHARACTERS = 16
"""Shorter outputs are found only as a whole answer: ``yes`` occurs in too many prompts."""
ANSWERING_ROLES = ("assistant", "model")


@dataclass(frozen=True, slots=True)
class Answered:
    """A call as far as dependencies are concerned."""

    span: Span
    agent: str
    prompt: Messages
    output: Messages
    lineage: tuple[SpanKey, ...]
    """Spans from the root to this one."""

    @property
    def role(self) -> tuple[str, tuple[str, ...]]:
        """Agent and system prompt."""
        system = [part for m in self.prompt if m.role == "system" for part in m.parts]
        return self.agent, tuple(system)

    @property
    def continues(self) -> bool:
        """Whether the prompt holds answers, so that it goes on with a conversation."""
        return any(message.role in ANSWERING_ROLES for message in self.prompt)


def direct_dependencies(
    calls: Sequence[Answered], spans: Mapping[SpanKey, Span]
) -> list[tuple[int, ...]]:
    """For each call the indices of those it waited for, earlier first.

    ``calls`` are those of one run in order of start, then end; so indices are below the call's own.
    """
    found = _found(calls)
    finders = [0] * len(calls)  # as bits: who repeats the output of this call
    for index, needed in enumerate(found):
        for other in needed:
            finders[other] |= 1 << index
    roles = [call.role for call in calls]
    dependencies: list[tuple[int, ...]] = []
    implied: list[int] = []  # as bits: all that a call waits for, directly or not
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
    """For each call the earlier, ended ones of which its prompt repeats an output.

    Prompts repeat each other, so each distinct text is searched once.
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
    """Whether the branch of ``first`` had ended when that of ``second`` began, below what they share."""
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
