"""Facts of the request in progress: the id of all its log lines, and the fields of its access line.

The server begins the facts of each HTTP request; whatever handles it adds what it knows. They travel in
the context of the task, and tasks that it starts share them. Cost: one context variable per request.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class RequestFacts:
    """One request. ``fields`` hold no prompt, no key and no user id."""

    request_id: str
    """Id of the call in the ledger once there is a call, else a generated one."""
    client: str = ""
    """Address of the client; empty if the connection has none."""
    fields: dict[str, object] = field(default_factory=dict)


_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def begin_request(request_id: str, client: str = "") -> RequestFacts:
    """Begin the facts of a request in this task."""
    facts = RequestFacts(request_id, client)
    _current.set(facts)
    return facts


def current_request_id() -> str:
    """Return the id of the request in progress; empty outside of one."""
    facts = _current.get()
    return "" if facts is None else facts.request_id


def current_client() -> str:
    """Return the address of the client of the request in progress; empty outside of one."""
    facts = _current.get()
    return "" if facts is None else facts.client


def name_call(record_id: str) -> None:
    """Give the request in progress the id of its call in the ledger."""
    facts = _current.get()
    if facts is not None:
        facts.request_id = record_id


def add_facts(**fields: object) -> None:
    """Add fields to the access line of the request in progress, if there is one."""
    facts = _current.get()
    if facts is not None:
        facts.fields.update(fields)
