"""VTC with the true output lengths, or the true ones within +-50 % (VTC 4.4, B.3, Tables 5 and 6).

Only a simulator knows the true length; it sets ``LocalCall.output_tokens``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.fairness.counters import VirtualCounters
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions


@dataclass(frozen=True, slots=True)
class VtcOracleOptions(VtcOptions):
    """Options of VTC; ``predict`` is always the oracle."""

    noise: float = 0.0
    """Maximum relative error of the prediction."""
    seed: int = 0
    """Seed of the errors."""

    def __post_init__(self) -> None:
        VtcOptions.__post_init__(self)
        if self.predict is not None:
            raise ValueError(f"predict is {self.predict!r}; an oracle allows only null")
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is {self.noise}; allowed: 0 to 1")


class Oracle:
    """Predicts the true length times a factor drawn from ``1 - noise`` to ``1 + noise`` per call.

    The factor depends only on the seed and the call's id, not on the order of arrivals.
    """

    def __init__(self, *, noise: float = 0.0, seed: int = 0) -> None:
        self._noise, self._seed = noise, seed

    def predict(self, call: LocalCall) -> int:
        """Return the true length times the call's factor."""
        assert call.output_tokens is not None, "checked when the call arrived"
        if not self._noise:
            return call.output_tokens
        draw = random.Random(f"{self._seed}/{call.call_id}")  # noqa: S311  an error is no secret
        return round(call.output_tokens * draw.uniform(1 - self._noise, 1 + self._noise))

    def ended(self, client_id: str, output_tokens: int) -> None:
        """Do nothing: this predictor does not learn."""


class VtcOracle(Vtc):
    """The local scheduler of VTC(oracle) and VTC(+-50 %)."""

    def __init__(
        self,
        options: VtcOracleOptions = VtcOracleOptions(),
        *,
        counters: VirtualCounters | None = None,
    ) -> None:
        oracle = Oracle(noise=options.noise, seed=options.seed)
        super().__init__(options, counters=counters, predictor=oracle)

    def add(self, call: LocalCall) -> None:
        """Queue a call. Raises ValueError as the base does, or if its true length is missing."""
        if call.output_tokens is None:
            raise ValueError(
                f"call {call.call_id!r} has no output_tokens; an oracle needs the true length"
            )
        super().add(call)
