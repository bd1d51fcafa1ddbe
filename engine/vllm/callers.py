"""Reads client, weight and expected output of a request from ``vllm_xargs``.

vLLM passes ``vllm_xargs`` of the HTTP body to the scheduler as ``sampling_params.extra_args``. A
request without them, or with invalid values, belongs to the client ``default`` with weight 1: one
caller's values must not stop the engine for all. Each kind of error is logged once.

``call_id`` is the platform's id of the call; here vLLM's request id is used, since the samples of
one call share the xargs.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from fairserve.engine.vllm.surface import VllmRequest

DEFAULT_CLIENT = "default"
_MOST_CHARACTERS = 1024
_MOST_LEVELS = 8
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6
"""Minimum and maximum weight: charges are divided by it, and their sums must stay finite."""

logger = logging.getLogger("vllm.fairserve")


class Caller(NamedTuple):
    """Client id, with levels separated by slashes, and the divisor of its charges."""

    client_id: str
    weight: float
    expected_output_tokens: int = 0
    """Predicted output tokens; 0 for no prediction."""


class Callers:
    """Reads callers, and logs each kind of error once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def of(self, request: VllmRequest) -> Caller:
        """Return the caller of a request. Never raises, whatever the request contains."""
        arguments: Any = getattr(request.sampling_params, "extra_args", None)
        if not isinstance(arguments, dict):
            return Caller(DEFAULT_CLIENT, 1.0)
        return Caller(
            self._client(arguments.get("client_id")),
            self._weight(arguments.get("weight")),
            self._expected(arguments.get("expected_output_tokens")),
        )

    def _client(self, value: object) -> str:
        if value is None or value == "":
            return DEFAULT_CLIENT
        if not isinstance(value, str):
            self._warn("client_id", f"is of type {type(value).__name__}; allowed: a string")
        elif len(value) > _MOST_CHARACTERS:
            self._warn("client_id", f"is longer than allowed: {_MOST_CHARACTERS} characters")
        elif value.count("/") >= _MOST_LEVELS:
            self._warn("client_id", f"has more levels than allowed: {_MOST_LEVELS}")
        else:
            return value
        return DEFAULT_CLIENT

    def _weight(self, value: object) -> float:
        if value is None:
            return 1.0
        if isinstance(value, int | float) and not isinstance(value, bool):
            if _LEAST_WEIGHT <= value <= _MOST_WEIGHT:
                return float(value)
            self._warn("weight", f"is out of range; allowed: {_LEAST_WEIGHT} to {_MOST_WEIGHT:.0f}")
        else:
            self._warn("weight", f"is of type {type(value).__name__}; allowed: a number over 0")
        return 1.0

    def _expected(self, value: object) -> int:
        if value is None:
            return 0
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self._warn("expected_output_tokens", "is no whole number of 0 or more")
        return 0

    def _warn(self, name: str, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            logger.warning("vllm_xargs.%s %s. Taken as not given; this is logged once.", name, what)
