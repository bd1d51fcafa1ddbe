"""Access logs of Envoy: of calls and of attempts to the server, and of ended calls to a file.

Only calls have entries: the decision service marks each by a header, which no client can send.
"""

from __future__ import annotations

from typing import Any

from fairserve.platform.envoy.addresses import Addresses

CALL_HEADER = "x-fairserve-call"
"""Request header with the record id of a call, set by the decision service."""
ENDS_LOG = "fairserve-ends"
PROGRESS_LOG = "fairserve-progress"
ATTEMPTS_LOG = "fairserve-attempts"
RETRY_AFTER = "retry-after"
"""Header of a worker's answer that the entry of an attempt has."""
ANSWER = "fairserve.answer"
"""Namespace of the facts that the answer filter finds."""
FLUSH_S = "0.010s"
"""Longest time for which an entry waits in Envoy for others."""
PROGRESS_FLUSH_S = "0.050s"
"""The same for entries of progress: with many open calls a message has several of them."""
_TYPES = "type.googleapis.com/envoy.extensions.access_loggers"
_HAS_CALL = {"header_filter": {"header": {"name": CALL_HEADER, "present_match": True}}}


def call_logs(addresses: Addresses) -> list[dict[str, Any]]:
    """Return the logs of the client's side: progress and ends to the server, ends to the file."""
    begun = {
        "metadata_filter": {
            "matcher": {
                "filter": ANSWER,
                "path": [{"key": "started"}],
                "value": {"bool_match": True},
            },
            "match_if_key_not_found": False,
        }
    }
    ended = _type_is("DownstreamEnd")
    progress = {"and_filter": {"filters": [_type_is("DownstreamPeriodic"), begun]}}
    return [
        {**_grpc_log(ENDS_LOG), "filter": _of_calls(ended)},
        {**_grpc_log(PROGRESS_LOG, PROGRESS_FLUSH_S), "filter": _of_calls(progress)},
        {
            "name": "ends",
            "filter": _of_calls(ended),
            "typed_config": {
                "@type": f"{_TYPES}.file.v3.FileAccessLog",
                "path": str(addresses.ends_file),
                "log_format": {"json_format": _end_fields()},
            },
        },
    ]


def attempt_logs() -> list[dict[str, Any]]:
    """Return the log of the workers' side: the end of each attempt that failed, to the server."""
    failed = {"or_filter": {"filters": [status_filter("GE", 201), {"response_flag_filter": {}}]}}
    both = {"and_filter": {"filters": [_type_is("UpstreamEnd"), failed]}}
    log = _grpc_log(ATTEMPTS_LOG, additional_response_headers_to_log=[RETRY_AFTER])
    return [{**log, "filter": _of_calls(both)}]


def _grpc_log(name: str, flush_s: str = FLUSH_S, **more: list[str]) -> dict[str, Any]:
    config = {
        "@type": f"{_TYPES}.grpc.v3.HttpGrpcAccessLogConfig",
        "common_config": {
            "log_name": name,
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "decisions"}},
            "buffer_flush_interval": flush_s,
            "buffer_size_bytes": 16_384,
        },
        "additional_request_headers_to_log": [CALL_HEADER],
        **more,
    }
    return {"name": name, "typed_config": config}


def _end_fields() -> dict[str, Any]:
    """Return the fields of a line in the file: those of the entry that the server also gets."""
    return {
        "call": f"%REQ({CALL_HEADER})%",
        "began": "%START_TIME(%s.%6f)%",
        "duration_ms": "%DURATION%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "upstream": "%UPSTREAM_REMOTE_ADDRESS%",
        "answer": f"%DYNAMIC_METADATA({ANSWER})%",
    }


def _of_calls(condition: dict[str, Any]) -> dict[str, Any]:
    return {"and_filter": {"filters": [_HAS_CALL, condition]}}


def _type_is(name: str) -> dict[str, Any]:
    return {"log_type_filter": {"types": [name]}}


def status_filter(op: str, status: int) -> dict[str, Any]:
    """Return a filter for answers whose status compares so: ``EQ``, ``GE`` or ``LE``."""
    value = {"default_value": status, "runtime_key": "fairserve.none"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}
