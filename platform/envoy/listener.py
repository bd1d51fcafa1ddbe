"""The public listener of Envoy: its limits, its filters and its routes.

A call passes the decision service (external processing, from its headers to its end), the router and, on
the way back, the answer filter. All other requests go to the server unchanged.
"""

from __future__ import annotations

import socket
from importlib.resources import files
from typing import Any

from fairserve.platform.envoy.access_log_configuration import (
    CALL_HEADER,
    attempt_logs,
    call_logs,
)
from fairserve.platform.envoy.addresses import Addresses
from fairserve.platform.envoy.clusters import API, DECISIONS
from fairserve.platform.envoy.limits import MAX_HEAD_KIB, Limits
from fairserve.platform.envoy.local_errors import local_reply_config
from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.tls import transport_socket
from fairserve.platform.envoy.workers_file import WORKERS

CALL_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""Paths whose answers Envoy carries."""
RELAY_HEADER = "x-fairserve-relay"
"""On a request: the decision service leaves the call to the relay. On an answer: the relay made it."""
CALL = "fairserve.call"
"""Namespace in which the decision service describes a call for the answer filter."""
DECISION_MARGIN_S = 30.0
"""Seconds beyond the longest wait in the queue after which a missing decision is an error."""
MAX_DECISION_S = 3600.0
"""Longest wait for a decision that Envoy takes; a call that waits longer in the queue gets its 503."""
_PEER = {
    "key": "x-forwarded-for",
    "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
}
_RESERVED_NAMES = (CALL_HEADER, RELAY_HEADER)
_RESERVED_PREFIXES = ("x-gateway-", "x-envoy-")
_HTTP = "type.googleapis.com/envoy.extensions.filters.http"
_MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
    ".HttpConnectionManager"
)
_EXT_PROC, _LUA = "envoy.filters.http.ext_proc", "envoy.filters.http.lua"
_ON = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}
"""Turns a filter on for a route."""


def answer_filter(buffered_bytes: int) -> str:
    """Return the source of the answer filter; it lets Envoy buffer whole answers of this size."""
    source = files("fairserve.platform.envoy").joinpath("answer.lua").read_text("utf-8")
    return f"BUFFERED_BYTES = {buffered_bytes}\n{source}"


def listener(addresses: Addresses, limits: Limits, settings: EnvoySettings) -> dict[str, Any]:
    """Return the listener."""
    manager = _connection_manager(addresses, limits, settings)
    chain: dict[str, Any] = {"filters": [{"name": "http", "typed_config": manager}]}
    head_timeout = f"{limits.request_head_timeout_s:g}s"
    if settings.envoy_tls_cert is None:
        inspectors = [_first_bytes_inspector()]
    else:
        inspectors = []
        chain["transport_socket"] = transport_socket(addresses.certificate_file)
        chain["transport_socket_connect_timeout"] = head_timeout
    return {
        "name": "public",
        "address": addresses.listen.envoy(),
        # A second server on the same address fails instead of taking a part of the connections.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},
        "per_connection_buffer_limit_bytes": limits.client_buffer_bytes,
        "socket_options": _socket_options(limits),
        "listener_filters": inspectors,
        "listener_filters_timeout": head_timeout,
        "filter_chains": [chain],
    }


def _first_bytes_inspector() -> dict[str, Any]:
    """Return a filter that waits for the first 5 bytes of a connection without TLS.

    The time limit of a request head begins with its first byte, so a connection that sends nothing would
    stay open until the limit of an idle one. Envoy closes a connection whose filter waits too long. The
    inspector of HTTP would wait for the whole request line, and close slow ones without their 408.
    """
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
    }
    return {"name": "envoy.filters.listener.tls_inspector", "typed_config": config}


def _socket_options(limits: Limits) -> list[dict[str, Any]]:
    """Return options by which the kernel ends connections of clients that vanished or never read."""
    waits_ms = max(1, int(limits.client_write_timeout_s * 1000))
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, 18, waits_ms),  # TCP_USER_TIMEOUT
        (socket.IPPROTO_TCP, 4, 30),  # TCP_KEEPIDLE
        (socket.IPPROTO_TCP, 5, 10),  # TCP_KEEPINTVL
    ]
    return [
        {"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"}
        for level, name, value in options
    ]


def _connection_manager(
    addresses: Addresses, limits: Limits, settings: EnvoySettings
) -> dict[str, Any]:
    return {
        "@type": _MANAGER,
        "stat_prefix": "public",
        "codec_type": "AUTO",
        # The peer's address is appended to X-Forwarded-For; the server judges the list. Envoy's own rule
        # would append another address of this host for peers on the loopback.
        "use_remote_address": True,
        "skip_xff_append": True,
        "xff_num_trusted_hops": 1 if limits.behind_proxy else 0,
        "generate_request_id": False,
        "preserve_external_request_id": True,
        "server_header_transformation": "PASS_THROUGH",
        "normalize_path": True,
        "max_request_headers_kb": MAX_HEAD_KIB,
        "common_http_protocol_options": {
            "idle_timeout": f"{limits.keep_alive_timeout_s:g}s",
            "max_headers_count": settings.envoy_max_headers,
        },
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "fairserve"},
        "http2_protocol_options": {
            "max_concurrent_streams": settings.envoy_streams_per_connection,
            "initial_stream_window_size": 1 << 16,
            "initial_connection_window_size": 1 << 20,
            "connection_keepalive": {"interval": "30s", "timeout": "10s"},
        },
        "stream_idle_timeout": "0s",  # a call may wait, and a worker may think, for long
        "request_headers_timeout": f"{limits.request_head_timeout_s:g}s",
        "request_timeout": f"{limits.request_timeout_s:g}s",
        "early_header_mutation_extensions": [_early_mutation()],
        "local_reply_config": local_reply_config(limits, settings.envoy_max_headers),
        "access_log": call_logs(addresses),
        "access_log_options": {"access_log_flush_interval": f"{settings.envoy_progress_s:g}s"},
        "route_config": {"name": "public", "virtual_hosts": [_virtual_host(limits)]},
        "http_filters": [
            _late_mutation(),
            # Answers pass the filters in reverse. The answer filter follows external processing there:
            # it rewrites the body, which it must not do before the headers have left.
            # Both are off except for calls: an error of the protocol has no route, and its connection
            # closes before an external processor has seen the answer.
            {"name": _LUA, "typed_config": _lua(limits), "disabled": True},
            {"name": _EXT_PROC, "typed_config": _ext_proc(limits), "disabled": True},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_HTTP}.router.v3.Router",
                    "upstream_log": attempt_logs(),
                },
            },
        ],
    }


def _early_mutation() -> dict[str, Any]:
    """Return the removal of headers that only Envoy and the server set, and the note of the peer."""
    config = {
        "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation"
        ".header_mutation.v3.HeaderMutation",
        "mutations": [
            *({"remove": name} for name in _RESERVED_NAMES),
            *(_remove_prefix(prefix) for prefix in _RESERVED_PREFIXES),
            {"append": {"header": _PEER, "append_action": "APPEND_IF_EXISTS_OR_ADD"}},
        ],
    }
    return {"name": "reserved_headers", "typed_config": config}


def _late_mutation() -> dict[str, Any]:
    """Return the removal of headers of answers that are for Envoy only."""
    mutations = [{"remove": RELAY_HEADER}, _remove_prefix("x-envoy-")]
    config = {
        "@type": f"{_HTTP}.header_mutation.v3.HeaderMutation",
        "mutations": {"response_mutations": mutations},
    }
    return {"name": "envoy.filters.http.header_mutation", "typed_config": config}


def _remove_prefix(prefix: str) -> dict[str, Any]:
    return {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}}


def _lua(limits: Limits) -> dict[str, Any]:
    source = {"inline_string": answer_filter(limits.client_buffer_bytes)}
    return {"@type": f"{_HTTP}.lua.v3.Lua", "default_source_code": source}


def _ext_proc(limits: Limits) -> dict[str, Any]:
    waits = f"{min(limits.max_queue_wait_s + DECISION_MARGIN_S, MAX_DECISION_S):g}s"
    return {
        "@type": f"{_HTTP}.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": DECISIONS}},
        "failure_mode_allow": False,
        "status_on_error": {"code": "ServiceUnavailable"},
        "message_timeout": waits,
        "max_message_timeout": f"{MAX_DECISION_S:g}s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "BUFFERED",
            "request_trailer_mode": "SKIP",
            "response_header_mode": "SEND",
            "response_body_mode": "NONE",
            # Keeps the stream open to the end of the answer: it is the handle that cancels it.
            "response_trailer_mode": "SEND",
        },
        "metadata_options": {"receiving_namespaces": {"untyped": [CALL]}},
    }


def _virtual_host(limits: Limits) -> dict[str, Any]:
    return {
        "name": "all",
        "domains": ["*"],
        "include_request_attempt_count": True,
        "routes": [
            *(_relay_route(path) for path in CALL_PATHS),
            *(_call_route(path, limits) for path in CALL_PATHS),
            _server_route(),
        ],
    }


def _relay_route(path: str) -> dict[str, Any]:
    """Return the route of a call whose decision leaves it to the relay; no client can ask for it."""
    marked = {"name": RELAY_HEADER, "string_match": {"exact": "1"}}
    return {
        "name": "relay",
        "match": {"path": path, "headers": [marked]},
        "route": {"cluster": API, "timeout": "0s"},
    }


def _call_route(path: str, limits: Limits) -> dict[str, Any]:
    method = {"name": ":method", "string_match": {"exact": "POST"}}
    repeatable = {"name": "idempotency-key", "present_match": False}
    not_200 = {"name": ":status", "string_match": {"exact": "200"}, "invert_match": True}
    return {
        "name": "call",
        "match": {"path": path, "headers": [method, repeatable]},
        "request_body_buffer_limit": limits.max_body_bytes,
        "request_headers_to_remove": ["accept-encoding"],  # the answer filter reads plain answers
        "route": {
            "cluster": WORKERS,
            "timeout": "0s",
            "retry_policy": {
                # The second attempt is the relay's, which asks for a new grant. It never has a third:
                # the relay's answers carry x-envoy-ratelimited, which forbids one.
                "retry_on": "connect-failure,refused-stream,reset,retriable-headers",
                "retriable_headers": [not_200],
                "num_retries": 1,
                "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.001s"},
            },
        },
        "typed_per_filter_config": {_EXT_PROC: _ON, _LUA: _ON},
    }


def _server_route() -> dict[str, Any]:
    return {
        "name": "server",
        "match": {"prefix": "/"},
        "route": {
            "cluster": API,
            "timeout": "0s",
            "retry_policy": {
                "retry_on": "connect-failure,reset-before-request",
                "num_retries": 1,
            },
        },
    }
