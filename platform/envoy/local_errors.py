"""Errors that Envoy answers by itself, in the shape of the API.

Answers of the decision service take the same path through Envoy and must stay as they are. Envoy has
a reason (``response.code_details``) for each answer of its own, and none for those of the decision
service, unless that service sets ``ImmediateResponse.details``: it must not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fairserve.platform.base.errors import (
    BodyTooLargeError,
    FairServeError,
    HeadTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
    UpstreamError,
)
from fairserve.platform.envoy.access_log_configuration import status_filter
from fairserve.platform.envoy.limits import MAX_HEAD_KIB, Limits
from fairserve.platform.serving.messages.errors import PATHS as MESSAGE_PATHS
from fairserve.platform.serving.messages.errors import error_body as message_error_body

RETRY_S = "5"
UNSUPPORTED = (403, 404, 501)
"""Statuses that Envoy has for upgrades, for CONNECT and for unknown transfer codings."""
_CEL = "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
_OWN = "has(response.code_details) && response.code_details != ''"
_OVERLOADED = f"{_OWN} && response.code_details.startsWith('overload')"


def local_reply_config(limits: Limits, max_headers: int) -> dict[str, Any]:
    """Return the rules that write the bodies of Envoy's own errors."""
    mappers = []
    for condition, error in _errors(limits, max_headers):
        messages = _and(condition, {"or_filter": {"filters": [_path(p) for p in MESSAGE_PATHS]}})
        body = message_error_body(error)
        del body["request_id"]  # there is none
        mappers += [_mapper(messages, error, body), _mapper(condition, error, error.body())]
    return {"mappers": mappers}


def _errors(limits: Limits, max_headers: int) -> Iterator[tuple[dict[str, Any], FairServeError]]:
    """Yield the conditions of Envoy's errors and the errors, the most special first."""
    retry = {"retry-after": RETRY_S}
    yield (
        _and(status_filter("EQ", 503), _expression(_OVERLOADED)),
        UnavailableError("the server is overloaded. Retry later", code="overloaded", headers=retry),
    )
    errors = {
        400: InvalidRequestError("the request is malformed", code="malformed_request"),
        408: RequestTimeoutError("the request did not arrive in time; send it again"),
        413: BodyTooLargeError(f"the body is too long; allowed: {limits.max_body_bytes} bytes"),
        431: HeadTooLargeError(
            f"the head of the request is too long; allowed: {MAX_HEAD_KIB * 1024} bytes and"
            f" {max_headers} headers"
        ),
        500: FairServeError("internal error"),
        502: UpstreamError("the server's answer was broken. Retry later", headers=retry),
        503: UnavailableError("the server is not ready. Retry later", headers=retry),
        504: UnavailableError("the call waited too long. Retry later", headers=retry),
    }
    for status in UNSUPPORTED:
        yield (
            _and(status_filter("EQ", status), _expression(_OWN)),
            InvalidRequestError(
                "the server supports no tunnels, upgrades and transfer codings but chunked",
                code="malformed_request",
            ),
        )
    for status, error in errors.items():
        yield _and(status_filter("EQ", status), _expression(_OWN)), error


def _mapper(condition: dict[str, Any], error: FairServeError, body: Any) -> dict[str, Any]:
    text = json.dumps(body, separators=(",", ":")).replace("%", "%%")
    return {
        "filter": condition,
        "status_code": error.status,
        "body_format_override": {
            "text_format_source": {"inline_string": text},
            "content_type": "application/json",
        },
        "headers_to_add": [
            {
                "header": {"key": name, "value": value},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for name, value in error.headers.items()
        ],
    }


def _and(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"and_filter": {"filters": list(conditions)}}


def _path(path: str) -> dict[str, Any]:
    pattern = {"safe_regex": {"regex": path.replace(".", "\\.") + "(\\?.*)?"}}
    return {"header_filter": {"header": {"name": ":path", "string_match": pattern}}}


def _expression(text: str) -> dict[str, Any]:
    config = {"@type": _CEL, "expression": text}
    return {"extension_filter": {"name": "cel", "typed_config": config}}
