"""A request for a worker in the terms that all protocols share: the input of the decision service.

A protocol parses its own bodies and fills in a :class:`CallRequest`. The service reads nothing else, so
that it knows no body, no stream and no web framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fairserve.engine.wire.request_fields import FieldDemand
from fairserve.engine.wire.tasks import Task
from fairserve.interactions.tracking.identity import CallIdentity
from fairserve.platform.fleet.prompts.reader import Prompt, PromptReader
from fairserve.platform.fleet.prompts.worker import WorkerPromptReader
from fairserve.platform.tenancy.auth import Principal

AnyReader = PromptReader | WorkerPromptReader

RequestedTier = Literal["auto", "default", "flex", "priority", "fast"]
"""Values of OpenAI's ``service_tier``; ``auto`` is ``default``, and ``fast`` is ``priority``."""

CountTokens = Callable[[AnyReader, str, int | None], Awaitable[Prompt]]
"""Counts the prompt with a model's reader, for a tenant, up to a maximum of tokens.

Raises PromptTooLongError above the maximum.
"""


@dataclass(frozen=True, slots=True)
class DeclaredWork:
    """Work of a call that its program has declared."""

    expected_output_tokens: int = 0
    remaining_tokens: float = 0.0
    """Tokens of the program's remaining critical path, the call's own included."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One request, parsed and authenticated."""

    principal: Principal
    endpoint: str
    """Path of the protocol's endpoint; equal bodies for different endpoints are different requests."""
    model: str
    prompt_field: str
    """Name of the field that holds the prompt, for error messages."""
    count_tokens: CountTokens
    task: Task = "generate"
    """Task that the model must serve; all but ``generate`` have no output tokens."""
    user: str | None = None
    """End user that the body names; without one, the headers may name one."""
    has_media: bool = False
    """The prompt has parts whose tokens are not counted, such as images."""
    samples: int = 1
    max_output_tokens: int | None = None
    """Output limit in tokens that the request names."""
    max_output_field: str = "max_tokens"
    """Name of the field that holds the output limit, for error messages."""
    cache_salt: str | None = None
    demands: Sequence[FieldDemand] = ()
    """Fields that not every kind of worker honours."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers by lower-case name."""
    metadata: Mapping[str, Any] | None = None
    identity: CallIdentity | None = None
    """Run, call and parents, where they are known; else they are found by the app's rules."""
    conversation: str | None = None
    """Id of the conversation that the request belongs to, which may name its run."""
    continued_run: str | None = None
    """The core's id of the run of the stored response that the request continues; the protocol has
    looked it up among the responses of the app."""
    continued_call: str | None = None
    """Client's id of the call of that response: the parent where the client names none."""
    continued_user: str | None = None
    """User of that response or conversation, who owns the call where the client names none."""
    prompt_cache_key: Any = None
    messages: Sequence[Mapping[str, Any]] | None = None
    """Chat messages, from which run and parents may be inferred; None: the call has none."""
    raw: bytes = b""
    """The request as it was sent: repeated requests are recognised by it."""
    continued_bytes: int = 0
    """Size of what the messages have besides the request: the history that it continues."""
    declared: DeclaredWork | None = None
    background: bool = False
    """The call is of the class below all others, whatever tier it requests."""
    service_tier: RequestedTier | None = None
    priority_if_granted: bool = False
    """The tier is ``priority`` if the app may have it; without ``service_tier``."""
    stream: bool = False
    """The worker streams the answer, so that it reports its progress."""
    workers: frozenset[str] = frozenset()
    """Ids of the workers to choose from; empty: all of the model."""
