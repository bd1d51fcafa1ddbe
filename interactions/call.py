"""A call: one LLM request of an interaction, the unit that every layer handles.

The gateway (or the simulator) creates it, the tracker assigns its stage, the throttle admits or
rejects it, the feeder and the router place it, and the ledger records it. Token counts follow
ALGORITHMS section 0: *input* excludes the leading system messages, *prompt* is input + system.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from fairserve.interactions.run_rules import Clue

TokenIds = npt.NDArray[np.uint32]
"""Token ids of a prompt, shape (tokens,), as the tokenizer returns them."""

ClientPath = tuple[str, ...]
"""A client: the unit of fairness, outermost level first, for example ``(tenant, user)``."""

LEVELS = ("user", "tenant > user", "tenant > app > user")
"""The client paths to choose from (ALGORITHMS section 0). ``user`` is the papers' meaning."""

DEFAULT_LEVELS = "tenant > user"

TenantLevels = Literal["tenant > user", "tenant > app > user"]
"""Orders of ``LEVELS`` that a tenant may choose for dividing its own share."""
TENANT_LEVELS: tuple[TenantLevels, ...] = get_args(TenantLevels)

ServiceTier = Literal["default", "flex", "priority"]
"""Tiers of calls: ``flex`` calls are background calls, ``priority`` ones have a weight of their own."""

NO_TOKENS: TokenIds = np.zeros(0, dtype=np.uint32)


class TokenUsage(NamedTuple):
    """Tokens that a call has used so far; no field decreases while the call runs."""

    input_tokens: int = 0
    system_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were found in the worker's prefix cache."""
    output_tokens: int = 0
    """Generated tokens, summed over the ``n`` samples."""
    reasoning_tokens: int = 0
    """Part of ``output_tokens`` that the worker reports as reasoning."""

    @property
    def prompt_tokens(self) -> int:
        """Return all prompt tokens, L_I + L_S."""
        return self.input_tokens + self.system_tokens

    @property
    def extend_tokens(self) -> int:
        """Return the prompt tokens that had to be computed."""
        return max(0, self.input_tokens + self.system_tokens - self.cached_tokens)


NO_USAGE = TokenUsage()


class Restriction(NamedTuple):
    """Workers that can take a call, as in :class:`Call`; calls with equal ones wait for the same."""

    kinds: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    size: int = 0
    """Class of the tokens that a background call can hold (:func:`size_class`), or ``Call.size``."""
    samples: int = 0
    """Samples of a background call; 0 for other calls."""


UNRESTRICTED = Restriction()


def size_class(tokens: int, each_doubling: int = 8) -> int:
    """Return the class of a number of tokens, some for each doubling, from 1."""
    return 1 + math.floor(each_doubling * math.log2(max(1, tokens)))


def size_range(size: int) -> tuple[float, float]:
    """Return the fewest and the most tokens of one of eight classes; the most is in the next one."""
    return 2 ** ((size - 1) / 8), 2 ** (size / 8)


@dataclass(slots=True)
class Call:
    """One LLM request; ``stage`` and ``expected_output_tokens`` are set once, on attachment.

    ``parents`` names calls of the same interaction that ended before this one began. If it is None,
    the tracker infers them, with ``history``, ``answered_prompts`` and ``tool_results``.
    """

    call_id: str
    tenant: str
    app: str
    user: str
    interaction_id: str
    model: str
    input_tokens: int
    system_tokens: int
    max_output_tokens: int
    """Upper bound of the output of one sample."""
    samples: int = 1
    agent: str | None = None
    parents: tuple[str, ...] | None = None
    history: tuple[int, ...] = ()
    """Keys of the conversations that the call may continue, longest first
    (:mod:`fairserve.interactions.tracking.conversation`)."""
    answered_prompts: tuple[int, ...] = ()
    """Keys of the same conversations without their last answer, whose content may not be known."""
    tool_results: tuple[int, ...] = ()
    """Keys of the tool calls whose results the call contains."""
    clues: tuple[Clue, ...] = ()
    """Clues to the run of a call whose client named none, in the order of the rules."""
    answer_scopes: tuple[int, ...] = ()
    """Scopes in which later calls may find the run by the answer of this call; empty: none may."""
    run_rule: str = ""
    """Rule that named the run; "" if the call began an unnamed one."""
    single: bool = False
    """True if the client named no run: it is complete when its calls have ended, until another call
    continues it."""
    final: bool = False
    """True if the client declared this call the last one of its interaction."""
    token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    salt: str = ""
    """Cache isolation domain: prompts with different salts share no prefix."""
    block_keys: Sequence[int] | None = None
    """Chained 64-bit keys of the prompt's full blocks, for traces, which have no token ids. Taken as
    given: already salted and free of collisions."""
    stage: int = 0
    """1 + the longest path from a root of the interaction; 0 before attachment."""
    pool: str = ""
    """Name of the model pool that serves the call: its workers' model; "" if there is only one."""
    adapter: str = ""
    """LoRA adapter of the pool's model that the call uses; "" for the model itself."""
    expected_output_tokens: int = 0
    """Expected output over all samples, declared or from the app's profile; at most the maximum."""
    client: ClientPath = ()
    """Unit of fairness for the schedulers; default ``(tenant, user)``."""
    kinds: frozenset[str] = frozenset()
    """Kinds of workers that can serve the call; empty means any."""
    workers: frozenset[str] = frozenset()
    """Ids of the workers among which the call's gateway lets the router choose; empty means any."""
    avoid: frozenset[str] = frozenset()
    """Ids of the workers where the call failed before any output; others are preferred."""
    run_depth: int = 0
    """Calls on the longest path of its run to this one, for which it has precedence in its tenant; 0 if
    the run is longer than usual, or if runs begin without a place."""
    size: int = 0
    """Class of the memory that the call's run needs to begin; 0 if little, or if none is reserved."""
    declared: bool = False
    """True if the platform issued the call for a declared program."""
    background: bool = False
    """True for a call of the class below all others: it waits while any other call of its pool does."""
    priority: bool = False
    """True for a call that counts by its app's priority weight; a background call never does."""
    streamed: bool = True
    """False if the worker reports no progress of the call: its output is known at its end."""
    declared_output_tokens: int = 0
    """Expected output of one sample as declared by its program; 0 means from the app's profile."""
    remaining_tokens: float = 0.0
    """Expected output tokens on the longest path from this call to the end of its run, inclusive;
    finite, 0 if unknown."""
    remaining_calls: float = 1.0
    """Expected number of calls of the run from this one on, inclusive, by the app's profile."""
    prompt_tokens: int = field(init=False)
    """All prompt tokens, L_I + L_S."""

    def __post_init__(self) -> None:
        self.prompt_tokens = self.input_tokens + self.system_tokens
        if not self.client:
            self.client = (self.tenant, self.user)

    def __copy__(self) -> Call:
        return Call(*_VALUES(self))

    @property
    def tier(self) -> ServiceTier:
        """Return the service tier of the call."""
        if self.background:
            return "flex"
        return "priority" if self.priority else "default"

    @property
    def served_model(self) -> str:
        """Return the model that serves the call, as its workers name it."""
        return self.adapter or self.pool

    @property
    def restriction(self) -> Restriction:
        """Return the workers that can take the call; it does not change while the call is queued."""
        if self.background:
            size = size_class(self.most_tokens)
            return Restriction(self.kinds, self.workers, self.avoid, size, self.samples)
        if self.kinds or self.workers or self.avoid or self.size:
            return Restriction(self.kinds, self.workers, self.avoid, self.size)
        return UNRESTRICTED

    @property
    def most_tokens(self) -> int:
        """Return the tokens that the call can hold: its prompt and the largest output."""
        return self.prompt_tokens + self.samples * self.max_output_tokens


_VALUES = attrgetter(*(f.name for f in fields(Call) if f.init))


def client_path(call: Call, levels: str) -> ClientPath:
    """Return the call's path under one of ``LEVELS``. A user always belongs to its tenant."""
    return owner_path(call.tenant, call.app, call.user, levels)


def owner_path(tenant: str, app: str, user: str, levels: str) -> ClientPath:
    """Return the client path of a tenant's app and user under one of ``LEVELS``."""
    if levels == "tenant > user":
        return (tenant, user)
    if levels == "tenant > app > user":
        return (tenant, app, user)
    return (client_id((tenant, user)),)


@lru_cache(maxsize=16_384)
def client_id(path: ClientPath) -> str:
    """Return a path as one string for the workers; :func:`path_of_id` is the inverse."""
    return "/".join(quote(level, safe="") for level in path)


def path_of_id(client_id: str) -> ClientPath:
    """Return the path encoded in a worker's client id; an id without levels is a path of length 1."""
    return tuple(unquote(level) for level in client_id.split("/"))


_KEYS = ("history", "answered_prompts", "tool_results", "answer_scopes")


def call_to_plain(call: Call) -> dict[str, Any]:
    """Return a call as plain JSON values."""
    plain = {f.name: getattr(call, f.name) for f in fields(Call) if f.init}
    plain["token_ids"] = call.token_ids.tolist()
    plain["block_keys"] = None if call.block_keys is None else list(call.block_keys)
    plain["parents"] = None if call.parents is None else list(call.parents)
    plain["client"] = list(call.client)
    plain["kinds"] = sorted(call.kinds)
    plain["workers"] = sorted(call.workers)
    plain["avoid"] = sorted(call.avoid)
    for name in _KEYS:
        plain[name] = list(getattr(call, name))
    plain["clues"] = [list(clue) for clue in call.clues]
    return plain


def call_from_plain(plain: Mapping[str, Any]) -> Call:
    """Return the call of plain JSON values, the inverse of :func:`call_to_plain`."""
    values = dict(plain)
    values["token_ids"] = np.asarray(plain["token_ids"], dtype=np.uint32)
    values["parents"] = None if plain["parents"] is None else tuple(plain["parents"])
    for name in _KEYS:
        values[name] = tuple(plain[name])
    values["clues"] = tuple(Clue(*clue) for clue in plain["clues"])
    values["client"] = tuple(plain["client"])
    values["kinds"] = frozenset(plain["kinds"])
    values["workers"] = frozenset(plain["workers"])
    values["avoid"] = frozenset(plain["avoid"])
    return Call(**values)
