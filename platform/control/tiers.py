"""Grants of the service tier ``priority``: who may request it."""

from __future__ import annotations

from fairserve.interactions.call import Call
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.scheduling.directory import Directory


def check_tier(directory: Directory, call: Call) -> None:
    """Raise an InvalidRequestError for a priority call of an app without a priority weight."""
    if call.tier == "priority" and directory.priority_weight(call.app) is None:
        raise InvalidRequestError(
            "service_tier is 'priority', which the operator has not granted to this app; allowed:"
            " 'auto', 'default' and 'flex'",
            param="service_tier",
            code="unsupported_parameter",
        )
