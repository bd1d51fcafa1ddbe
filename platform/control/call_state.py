"""The state of a call between its submission and its ledger row, and the fields of the row.

Monotonic times measure durations, wall times date the record; the two are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

from fairserve.interactions.call import NO_USAGE, Call, TokenUsage
from fairserve.interactions.tracking.identity import client_call_id, client_run_id
from fairserve.platform.control.messages import (
    NO_SOURCE,
    CallRecord,
    CallSource,
    Client,
    Release,
)
from fairserve.scheduling.dispatch.admission import BILLED
from fairserve.scheduling.events import CallOutcome, Refuse
from fairserve.scheduling.fairness.cost import Linear
from fairserve.throttling.quotas.price import FREE, TokenPrice

MAX_ERROR_CHARS = 500
MAX_WHOLE = 2**63 - 1

_SERVICE = Linear()


@dataclass(slots=True, eq=False)
class CallState:
    """One queued or running call. ``worker_id`` is set from its grant until it ends or is requeued."""

    call: Call
    record_id: str
    fingerprint: str
    submitted_s: float
    accepted_at: float
    worker_id: str | None = None
    queue_s: float | None = None
    started: bool = False
    usage: TokenUsage = NO_USAGE
    estimated: bool = False
    """The output tokens of ``usage`` are a forecast."""
    ttft_s: float | None = None
    """Seconds from submission to the first output, known at the end of the call."""
    journaled_s: float = 0.0
    """Monotonic time of its last progress entry in the journal."""
    run_opened_at: float = 0.0
    block_keys: Sequence[int] = ()
    """Keys of the full blocks of the prompt, as the router matches them."""
    price: TokenPrice = FREE
    repeats: bool = False
    """The client library marked the call as a repetition of an earlier one."""
    own_row: bool = True
    """False for an ended call that shares a row with others; one that used something never does."""
    release: Release | None = None
    """Its end, if that was read before its grant: a state lacked both."""
    superseded: bool = False
    """The client has repeated the call: it is charged only if a worker has worked on it."""
    source: CallSource = NO_SOURCE
    traceparent: str = ""
    """W3C trace context of its span; empty: it is not traced."""
    """Set by the listener that traces calls; control does not read it."""
    owner: Client = field(init=False)

    def __post_init__(self) -> None:
        self.owner = (self.call.tenant, self.call.app, self.call.user)

    @property
    def unseen(self) -> bool:
        """True if the worker generates an output of which it reports nothing before its end."""
        call = self.call
        return not call.streamed and self.started and call.max_output_tokens > 0

    def running_s(self, now_s: float) -> float:
        """Return the seconds since the worker started the call; 0 before."""
        return now_s - self.submitted_s - (self.queue_s or 0.0) if self.started else 0.0

    @property
    def unused(self) -> bool:
        """True if no worker has worked on the call."""
        return self.usage.prompt_tokens + self.usage.output_tokens == 0

    @property
    def charged(self) -> bool:
        """True if its end is charged."""
        return not (self.superseded and self.unused)

    def row(
        self,
        outcome: CallOutcome,
        *,
        now_s: float,
        ended_at: float,
        error: str = "",
        charged: bool = True,
    ) -> dict[str, Any]:
        """Return the fields of its :class:`CallRecord`, if it ends now with the usage so far."""
        call, usage, price = self.call, self.usage, self.price
        billed = charged and outcome in BILLED and price is not FREE
        return {
            "call_id": self.record_id,
            "tenant": call.tenant,
            "app": call.app,
            "user": call.user,
            "model": call.model,
            "interaction_id": client_run_id(call.app, call.interaction_id),
            "stage": call.stage,
            "agent": call.agent,
            "outcome": outcome,
            "accepted_at": self.accepted_at,
            "ended_at": ended_at,
            **_usage_fields(usage),
            "expected_output_tokens": call.expected_output_tokens or None,
            "queue_delay_s": self.queue_s,
            "ttft_s": self.ttft_s,
            "duration_s": now_s - self.submitted_s,
            "worker": self.worker_id,
            "name": client_call_id(call.interaction_id, call.call_id),
            "parents": tuple(
                [client_call_id(call.interaction_id, parent) for parent in call.parents or ()]
            ),
            "served_model": call.served_model,
            "wasted": outcome != "completed" and not self.unused,
            "estimated": self.estimated,
            "service_tier": call.tier,
            "charged": charged,
            "cost": price.cost(usage) if billed else 0,
            "price_id": price.price_id,
            "error": error[:MAX_ERROR_CHARS],
        }

    def record(
        self, outcome: CallOutcome, *, now_s: float, ended_at: float, error: str = ""
    ) -> CallRecord:
        """Return its ledger row, if it ends now with the usage so far."""
        return CallRecord(**self.row(outcome, now_s=now_s, ended_at=ended_at, error=error))

    def accepted_data(self) -> dict[str, Any]:
        """Return the data of the ``accepted`` entry in the journal."""
        row = self.row("failed", now_s=self.submitted_s, ended_at=self.accepted_at)
        return {**row, "duration_s": None}

    def progress_data(self, usage: TokenUsage) -> dict[str, Any]:
        """Return the data of the ``progress`` entry in the journal: the changed fields of the row.

        ``usage`` is that of the call, or its forecast.
        """
        return {
            **_usage_fields(usage),
            "estimated": usage.output_tokens > self.usage.output_tokens,
            "worker": self.worker_id,
            "queue_delay_s": self.queue_s,
        }

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, without the call and what follows from it."""
        plain = {name: getattr(self, name) for name in _STATE}
        return {
            **plain,
            "call_id": self.call.call_id,
            "usage": list(self.usage),
            "price": list(astuple(self.price)),
            "source": [self.source.endpoint, self.source.traceparent],
            "release": None if self.release is None else _plain(self.release),
        }

    @classmethod
    def restored(cls, plain: Mapping[str, Any], call: Call, block_keys: Sequence[int]) -> CallState:
        """Return the state of an earlier snapshot; ``call`` is the dispatcher's."""
        return cls(
            **{name: plain[name] for name in _STATE},
            call=call,
            usage=TokenUsage(*plain["usage"]),
            price=TokenPrice(*plain["price"]),
            source=CallSource(*plain["source"]),
            release=None if plain["release"] is None else _release(plain["release"]),
            block_keys=block_keys,
        )


_STATE = tuple(
    each.name
    for each in fields(CallState)
    if each.init and each.name not in ("call", "usage", "price", "source", "release", "block_keys")
)


def _plain(release: Release) -> dict[str, Any]:
    keys = list(release.continuation_keys)
    return {**asdict(release), "usage": list(release.usage), "continuation_keys": keys}


def _release(plain: Mapping[str, Any]) -> Release:
    usage, keys = TokenUsage(*plain["usage"]), tuple(plain["continuation_keys"])
    return Release(**{**plain, "usage": usage, "continuation_keys": keys})


def rejection_fields(rejection: Refuse) -> dict[str, Any]:
    """Return the fields of a record that describe a rejection."""
    decision = rejection.decision
    return {
        "refusal_reason": decision.reason,
        "refusal_scope": decision.scope,
        "refusal_limit": decision.limit,
        "refusal_count": decision.count,
        "refusal_window_s": decision.window_s,
        "refusal_retry_after_s": decision.retry_after_s,
        "refusal_inputs": _inputs(rejection) or None,
        "mid_run": rejection.mid_run,
    }


def _inputs(rejection: Refuse) -> dict[str, Any]:
    """Return the other inputs of a rejection by the names of their columns."""
    state, budget = rejection.context, rejection.decision.budget
    inputs = {} if state is None else {f.name: getattr(state, f.name) for f in fields(state)}
    if budget is not None:
        inputs |= {
            "budget_limit": budget.limit,
            "budget_spent": budget.spent,
            "budget_held": budget.held,
            "call_cost": budget.cost,
        }
    return {name: _storable(value) for name, value in inputs.items()}


def _storable(value: Any) -> Any:
    """Return a value that journal and database can store: whole numbers are bounded."""
    return min(value, MAX_WHOLE) if isinstance(value, int) else value


def _usage_fields(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "system_tokens": usage.system_tokens,
        "cached_tokens": usage.cached_tokens,
        "extend_tokens": usage.extend_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "service": _SERVICE(usage),
    }
