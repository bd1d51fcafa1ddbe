"""Identity of a call's run, from its headers and the ``metadata`` of its body.

The first source that names a run is used: our own header, our own metadata, then the headers that
agent frameworks and other gateways already send (in the order of ``ALIASES``). Without one, the
call forms a separate run. ``previous_response_id`` is never used: it names the last answer, not
the root of the run. The ids are chosen by clients; the caller scopes them to the authenticated app,
so that a tenant's id never joins another tenant's run (:func:`core_run_id`, :func:`core_call_id`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def identify(
    headers: Mapping[str, str],
    metadata: Mapping[str, Any] | None = None,
    *,
    traceparent: bool = False,
) -> CallIdentity:
    """Return a call's identity. ``headers`` has lower-case names.

    With ``traceparent``, the trace id of a W3C ``traceparent`` header names the run if no other
    source does; malformed headers are ignored, as that standard requires. Metadata keys are
    ``interaction_id``, ``interaction_final``, ``call_id``, ``parent_ids`` (a list or comma
    separated) and ``agent``; a header takes precedence over its key. Raises IdentityError.
    """
    sent = _Sent(headers, metadata or {})
    run_id, source = sent.text(RUN_HEADER, "interaction_id")
    agent, _ = sent.text(AGENT_HEADER, "agent")
    final = sent.flag(FINAL_HEADER, "interaction_final")
    if run_id is None:
        run_id, source, alias_agent, alias_final = _alias(headers)
        agent = agent or alias_agent
        final = final or alias_final
    if run_id is None and traceparent:
        run_id = _trace(headers.get(TRACEPARENT, "").strip())
        source = TRACEPARENT if run_id else ""
    call_id, call_source = sent.text(CALL_HEADER, "call_id")
    if call_id is not None and "," in call_id:
        raise IdentityError(call_source, "a call id has no comma")
    return CallIdentity(run_id, source, call_id, sent.parents(), agent, final)


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
            return checked_id(self.headers[header], header), header
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
