"""Clusters of Envoy: the workers, the server's HTTP side and its gRPC side.

Envoy's own bounds of calls (circuit breakers) are above what the edge admits, so that calls are rejected
by the rules of FairServe and not by these.
"""

from __future__ import annotations

from typing import Any

from fairserve.platform.envoy.addresses import Address, Addresses
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.workers_file import WORKERS

API = "api"
DECISIONS = "decisions"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header with the worker's address, set by the decision service."""
WORKER_IDLE_S = "4s"
"""Workers close idle connections after 5 s (uvicorn's default); Envoy does so earlier."""
MAX_CALLS = 1 << 30
MAX_FRAMES = (1 << 32) - 1
_POLICIES = "type.googleapis.com/envoy.extensions.load_balancing_policies"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def clusters(addresses: Addresses, limits: Limits, settings: EnvoySettings) -> list[dict[str, Any]]:
    """Return all clusters."""
    calls = open_calls(limits, settings)
    return [
        _workers(addresses, limits, settings, calls),
        _server(API, addresses.api, limits, calls, _http1(f"{limits.keep_alive_timeout_s / 2:g}s")),
        _server(DECISIONS, addresses.decisions, limits, calls, _http2(calls)),
    ]


def open_calls(limits: Limits, settings: EnvoySettings) -> int:
    """Return the number of requests that clients can have open, waiting calls included."""
    edge = limits.max_connections * settings.envoy_streams_per_connection
    return min(max(edge, limits.max_queued_calls), MAX_CALLS)


def _workers(
    addresses: Addresses, limits: Limits, settings: EnvoySettings, calls: int
) -> dict[str, Any]:
    return {
        **_common(WORKERS, limits, calls, _http1(WORKER_IDLE_S)),
        "type": "EDS",
        "connect_timeout": f"{settings.envoy_connect_timeout_s:g}s",
        "eds_cluster_config": {
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": str(addresses.workers_file),
                    "watched_directory": {"path": str(addresses.workers_file.parent)},
                },
            }
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_balancing_policy": _policy(
            "override_host",
            {
                "override_host_sources": [{"header": DESTINATION_HEADER}],
                "fallback_policy": _policy("round_robin", {}),
            },
        ),
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": 30,
                "keepalive_interval": 10,
                "keepalive_probes": 3,
            }
        },
    }


def _server(
    name: str, address: Address, limits: Limits, calls: int, protocol: dict[str, Any]
) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [address.endpoint()]}]
    return {
        **_common(name, limits, calls, protocol),
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }


def _common(name: str, limits: Limits, calls: int, protocol: dict[str, Any]) -> dict[str, Any]:
    threshold = {
        "max_connections": calls,
        "max_pending_requests": calls,
        "max_requests": calls,
        "max_retries": calls,
    }
    return {
        "name": name,
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **threshold}]},
        "per_connection_buffer_limit_bytes": limits.client_buffer_bytes,
        "typed_extension_protocol_options": {_HTTP: protocol},
    }


def _http1(idle: str) -> dict[str, Any]:
    return {
        "@type": f"type.googleapis.com/{_HTTP}",
        "common_http_protocol_options": {"idle_timeout": idle},
        "explicit_http_config": {"http_protocol_options": {}},
    }


def _http2(streams: int) -> dict[str, Any]:
    """Return options of a connection that carries all calls that wait and run."""
    options = {
        "max_concurrent_streams": streams,
        "initial_stream_window_size": 1 << 16,
        "initial_connection_window_size": 1 << 24,
        # By default Envoy closes a connection with 1,000 frames to send that only end streams: clients
        # that leave together would end the calls of all others.
        "max_outbound_frames": MAX_FRAMES,
        "max_outbound_control_frames": MAX_FRAMES,
    }
    return {
        "@type": f"type.googleapis.com/{_HTTP}",
        "explicit_http_config": {"http2_protocol_options": options},
    }


def _policy(name: str, options: dict[str, Any]) -> dict[str, Any]:
    kind = {"override_host": "OverrideHost", "round_robin": "RoundRobin"}[name]
    config = {"@type": f"{_POLICIES}.{name}.v3.{kind}", **options}
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]}
