"""The dispatcher's record of a call between acceptance and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fairserve.interactions.call import Call, TokenUsage, call_from_plain, call_to_plain


@dataclass(slots=True)
class QueuedCall:
    """A call, queued until it has a worker; changed by the dispatcher and its feed."""

    call: Call
    demand_tokens: int = 0
    """Demand of the call in tokens, in the queue or at its worker."""
    worker_id: str | None = None
    epoch: int = 0
    """Epoch of the worker, which distinguishes successive joins under the same id."""
    charge_factor: float = 1.0
    cached_tokens: int = 0
    output_tokens: int = 0
    started: bool = False
    under_way: bool = False
    """True if its run had an accepted call before it."""

    def usage(self) -> TokenUsage:
        """Return the known usage so far."""
        call = self.call
        return TokenUsage(
            call.input_tokens, call.system_tokens, self.cached_tokens, self.output_tokens
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the call as plain JSON values."""
        plain = {f.name: getattr(self, f.name) for f in fields(QueuedCall)}
        return {**plain, "call": call_to_plain(self.call)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> QueuedCall:
        """Return the call of plain JSON values, the inverse of :meth:`to_plain`."""
        return cls(**{**plain, "call": call_from_plain(plain["call"])})
