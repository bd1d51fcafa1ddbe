"""Identity of a call's run, from its headers and its body, by the rules that are on.

The first rule that names a run is used (:mod:`fairserve.interactions.run_rules`): our own
header, our own metadata, then the headers that agent frameworks and other gateways already send (in the
order of ``ALIASES``). These ids are chosen by clients; the caller scopes them to the authenticated app,
so that a tenant's id never joins another tenant's run (:func:`core_run_id`, :func:`core_call_id`).

What the later rules find becomes *clues*, by which the tracker finds the run among those of the app and
user. Values of headers and fields that were not meant for us are ignored if they are malformed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.run_rules import (
    ANY_ANSWER,
    DEFAULT_RUN_RULES,
    Clue,
    RunRule,
    clue_hash,
)

MAX_ID_CHARS = 128
MAX_PARENTS = 64

RUN_HEADER = "x-interaction-id"
FINAL_HEADER = "x-interaction-final"
CALL_HEADER = "x-call-id"
PARENTS_HEADER = "x-parent-ids"
AGENT_HEADER = "x-agent"

LITELLM = ("x-litellm-trace-id", "x-litellm-session-id")
DYNAMO_SESSION = "x-dynamo-session-id"
DYNAMO_PARENT = "x-dynamo-parent-session-id"
DYNAMO_FINAL = "x-dynamo-session-final"
CLAUDE_CODE_SESSION = "x-claude-code-session-id"
CLAUDE_CODE_AGENT = "x-claude-code-agent-id"

TRACEPARENT = "traceparent"

METADATA_KEYS = ("session_id", "run_id", "thread_id")
"""Keys of OpenAI's ``metadata`` that name a run, in order."""
MAX_FOREIGN_ID_CHARS = 512
"""Longest id of another tool's, as OpenAI bounds the values of ``metadata``."""

ALIASES = (
    *LITELLM,
    DYNAMO_SESSION,
    CLAUDE_CODE_SESSION,
    "session-id",
    "x-session-affinity",
    "agent-session-id",
)


class IdentityError(ValueError):
    """A header or metadata field has an invalid value; ``source`` names it."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The place of a call in its run as declared by the client, with the client's ids."""

    run_id: str | None
    """Id of the run; None: the call forms a separate run."""
    source: str = ""
    """Header or metadata field that named the run."""
    call_id: str | None = None
    parents: tuple[str, ...] | None = None
    """Ids of the parents; None: not declared; empty: the call is a root."""
    agent: str | None = None
    final: bool = False
    rule: RunRule | None = None
    """Rule that named the run; None: the client named none."""
    clues: tuple[Clue, ...] = ()
    """Clues to the run of a call whose client named none, in the order of the rules."""
    answer_scopes: tuple[int, ...] = ()
    """Scopes in which later calls may find the run by the answer of this call."""


@dataclass(frozen=True, slots=True)
class OtherSources:
    """Fields of a request other than headers and metadata; None: it has none."""

    conversation: str | None = None
    """Id of the conversation that the request belongs to."""
    continued_run: str | None = None
    """The core's id of the run of the stored response that the request continues."""
    prompt_cache_key: Any = None
    own_trace: bool = True
    """False if a proxy of the server's may have begun the trace."""


def identify(
    headers: Mapping[str, str],
    metadata: Mapping[str, Any] | None = None,
    rules: Collection[RunRule] = DEFAULT_RUN_RULES,
    other: OtherSources = OtherSources(),
) -> CallIdentity:
    """Return a call's identity by the ``rules`` that are on. ``headers`` has lower-case names.

    Our own metadata keys are ``interaction_id``, ``interaction_final``, ``call_id``, ``parent_ids`` (a
    list or comma separated) and ``agent``; a header takes precedence over its key. Raises IdentityError
    for an invalid value of ours, or of an alias.
    """
    sent = _Sent(headers, metadata or {})
    agent, _ = sent.text(AGENT_HEADER, "agent")
    final = sent.flag(FINAL_HEADER, "interaction_final")
    run_id: str | None = None
    source = ""
    rule: RunRule | None = None
    if "interaction_header" in rules and RUN_HEADER in headers:
        run_id, source, rule = sent.header(RUN_HEADER), RUN_HEADER, "interaction_header"
    if run_id is None and "interaction_metadata" in rules:
        run_id, source = sent.field("interaction_id")
        rule = "interaction_metadata" if run_id else None
    if run_id is None and "aliases" in rules:
        run_id, source, alias_agent, alias_final = _alias(headers)
        rule = "aliases" if run_id else None
        agent = agent or alias_agent
        final = final or alias_final
    call_id, call_source = sent.text(CALL_HEADER, "call_id")
    if call_id is not None and "," in call_id:
        raise IdentityError(call_source, "a call id has no comma")
    trace = _trace(headers.get(TRACEPARENT, "").strip()) if other.own_trace else None
    scopes: list[int] = []
    if "continued_conversation" in rules:
        scopes.append(ANY_ANSWER)
    if "traceparent" in rules and trace is not None:
        scopes.append(clue_hash("traceparent", trace))
    clues = () if run_id else _clues(sent.metadata, rules, other, trace)
    parents = sent.parents()
    return CallIdentity(run_id, source, call_id, parents, agent, final, rule, clues, tuple(scopes))


def _clues(
    metadata: Mapping[str, Any],
    rules: Collection[RunRule],
    other: OtherSources,
    trace: str | None,
) -> tuple[Clue, ...]:
    """Return the clues of a call whose client named no run, in the order of the rules."""
    found: list[Clue] = []
    if trace is not None:
        found.append(Clue("traceparent", scope=clue_hash("traceparent", trace)))
    names: tuple[tuple[RunRule, Any], ...] = (
        ("whole_trace", trace),
        ("metadata", _first_foreign_id(metadata.get(key) for key in METADATA_KEYS)),
        ("conversation", other.conversation),
    )
    found += [Clue(rule, name=clue_hash(rule, value)) for rule, value in names if value]
    if other.continued_run is not None:
        found.append(Clue("previous_response", run_id=other.continued_run))
    found.append(Clue("continued_conversation", scope=ANY_ANSWER))
    cache_key = _first_foreign_id([other.prompt_cache_key])
    if cache_key is not None:
        found.append(Clue("prompt_cache_key", name=clue_hash("prompt_cache_key", cache_key)))
    return tuple(clue for clue in found if clue.rule in rules)


def _first_foreign_id(values: Iterable[Any]) -> str | None:
    """Return the first value that can be an id; others were not meant for us."""
    for value in values:
        if isinstance(value, str) and len(value) <= MAX_FOREIGN_ID_CHARS:
            text = value.strip()
            if text and text.isprintable():
                return text
    return None


def core_run_id(app: str, run_id: str) -> str:
    """Return the internal id of a run. ``app`` contains no slash."""
    return f"{app}/{run_id}"


def client_run_id(app: str, core_id: str) -> str:
    """Return the client's run id, the inverse of :func:`core_run_id`."""
    return core_id.removeprefix(f"{app}/")


def core_call_id(core_run: str, call_id: str) -> str:
    """Return the internal id of a call; unambiguous, because the last part contains no slash."""
    escaped = call_id.replace("%", "%25").replace("/", "%2F")
    return f"{core_run}/{escaped}"


def client_call_id(core_run: str, core_id: str) -> str:
    """Return the client's call id, the inverse of :func:`core_call_id`."""
    return core_id.removeprefix(f"{core_run}/").replace("%2F", "/").replace("%25", "%")


def checked_id(value: str, source: str) -> str:
    """Return an id without surrounding whitespace. Raises IdentityError if invalid or too long."""
    text = value.strip()
    if not text:
        raise IdentityError(source, "is empty; leave it out instead")
    if len(text) > MAX_ID_CHARS:
        raise IdentityError(source, f"has {len(text)} characters; allowed: {MAX_ID_CHARS}")
    if not text.isprintable():
        raise IdentityError(source, "has characters that are not printable")
    return text


@dataclass(frozen=True, slots=True)
class _Sent:
    """Sent headers and metadata; headers take precedence, and every value is checked."""

    headers: Mapping[str, str]
    metadata: Mapping[str, Any]

    def text(self, header: str, key: str) -> tuple[str | None, str]:
        if header in self.headers:
            return self.header(header), header
        return self.field(key)

    def header(self, header: str) -> str:
        return checked_id(self.headers[header], header)

    def field(self, key: str) -> tuple[str | None, str]:
        source = f"metadata.{key}"
        value = self.metadata.get(key)
        if value is None:
            return None, ""
        if not isinstance(value, str):
            raise IdentityError(source, "must be a string")
        return checked_id(value, source), source

    def flag(self, header: str, key: str) -> bool:
        if header in self.headers:
            return _flag(self.headers[header], header)
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        source = f"metadata.{key}"
        if not isinstance(value, str):
            raise IdentityError(source, "must be true or false")
        return _flag(value, source)

    def parents(self) -> tuple[str, ...] | None:
        source = "metadata.parent_ids"
        value: Any = self.metadata.get("parent_ids")
        if PARENTS_HEADER in self.headers:
            source, value = PARENTS_HEADER, self.headers[PARENTS_HEADER]
        if value is None:
            return None
        if isinstance(value, str):
            # An empty header declares the call a root.
            value = value.split(",") if value.strip() else []
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise IdentityError(source, "must be call ids, separated by commas")
        if len(value) > MAX_PARENTS:
            raise IdentityError(source, f"names {len(value)} calls; allowed: {MAX_PARENTS}")
        return tuple(dict.fromkeys(checked_id(part, source) for part in value))


def _trace(text: str) -> str | None:
    """Return the trace id of a ``traceparent`` (W3C Trace Context 2, section 3.2.2)."""
    found = re.fullmatch(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4] is not None):
        return None
    return found[2] if int(found[2], 16) and int(found[3], 16) else None


def _alias(headers: Mapping[str, str]) -> tuple[str | None, str, str | None, bool]:
    """Return run id, source, agent and final flag from the headers of other tools."""
    for source in ALIASES:
        if source not in headers:
            continue
        run_id = checked_id(headers[source], source)
        if source == DYNAMO_SESSION:
            return _dynamo(headers, run_id)
        agent = None
        if source == CLAUDE_CODE_SESSION and CLAUDE_CODE_AGENT in headers:
            agent = checked_id(headers[CLAUDE_CODE_AGENT], CLAUDE_CODE_AGENT)
        return run_id, source, agent, False
    return None, "", None, False


def _dynamo(headers: Mapping[str, str], session: str) -> tuple[str, str, str | None, bool]:
    """Return Dynamo's run: each sub-agent has its own session, which names its parent's session.

    They form one run; otherwise a run would gain a share with every sub-agent that it starts. The
    end of a sub-agent's session does not end the run.
    """
    if DYNAMO_PARENT in headers:
        return checked_id(headers[DYNAMO_PARENT], DYNAMO_PARENT), DYNAMO_PARENT, session, False
    final = DYNAMO_FINAL in headers and _flag(headers[DYNAMO_FINAL], DYNAMO_FINAL)
    return session, DYNAMO_SESSION, None, final


def _flag(text: str, source: str) -> bool:
    folded = text.strip().lower()
    if folded in ("true", "1"):
        return True
    if folded in ("false", "0", ""):
        return False
    raise IdentityError(source, f"is {text[:20]!r}; allowed: true, false")
