"""Facts of the request in progress: the id of all its log lines, and the fields of its access line.

The server begins the facts of each HTTP request; whatever handles it adds what it knows. They travel in
the context of the task, and tasks that it starts share them. Cost: one context variable per request.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from fairserve.platform.base.errors import FairServeError


@dataclass(slots=True, eq=False)
class RequestFacts:
    """One request. ``fields`` hold no prompt, no key and no user id."""

    request_id: str
    """Id of the call in the ledger once there is a call, else a generated one."""
    client: str = ""
    """Address of the client; empty if the connection has none."""
    from_proxy: bool = False
    """True if a trusted proxy sent the request."""
    fields: dict[str, object] = field(default_factory=dict)


_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def begin_request(request_id: str, client: str = "", *, from_proxy: bool = False) -> RequestFacts:
    """Begin the facts of a request in this task."""
    facts = RequestFacts(request_id, client, from_proxy)
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


def from_proxy() -> bool:
    """Return whether a trusted proxy sent the request in progress."""
    facts = _current.get()
    return facts is not None and facts.from_proxy


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


def add_error(error: FairServeError) -> None:
    """Add the code of the error that answers the request, and the reason of a rejection."""
    reason = (error.details or {}).get("reason")
    add_facts(error=error.code, **({} if reason is None else {"reason": reason}))
