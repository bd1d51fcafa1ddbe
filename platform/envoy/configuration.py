"""The whole configuration of Envoy, generated from addresses, limits and settings.

It holds no secret: the workers' tokens are added to each call by the decision service.
"""

from __future__ import annotations

from typing import Any

from fairserve.platform.envoy.addresses import Addresses
from fairserve.platform.envoy.clusters import clusters
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.listener import listener
from fairserve.platform.envoy.settings import EnvoySettings

_MONITORS = "envoy.resource_monitors"
_ACTIONS = "envoy.overload_actions"
_HEAP_ACTIONS = {
    "shrink_heap": 0.90,
    "disable_http_keepalive": 0.92,
    "stop_accepting_requests": 0.95,
}
"""Share of the heap at which Envoy takes each action."""

_RUNTIME = {"http.max_requests_per_io_cycle": 10}
"""Requests of one connection that Envoy begins before it turns to the others. Without it a client that
opens and resets HTTP/2 streams occupies a thread; connections that only reset are closed by default."""


def bootstrap(addresses: Addresses, limits: Limits, settings: EnvoySettings) -> dict[str, Any]:
    """Return the configuration as Envoy reads it from JSON."""
    return {
        "node": {"id": "fairserve", "cluster": "fairserve"},
        "static_resources": {
            "listeners": [listener(addresses, limits, settings)],
            "clusters": clusters(addresses, limits, settings),
        },
        "overload_manager": _overload_manager(limits, settings),
        "layered_runtime": {"layers": [{"name": "limits", "static_layer": _RUNTIME}]},
        "admin": {"address": addresses.admin.envoy(), "ignore_global_conn_limit": True},
    }


def _overload_manager(limits: Limits, settings: EnvoySettings) -> dict[str, Any]:
    kinds = "type.googleapis.com/envoy.extensions.resource_monitors"
    heap = {
        "@type": f"{kinds}.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": settings.envoy_heap_bytes,
    }
    connections = {
        "@type": f"{kinds}.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": limits.max_connections,
    }
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {"name": f"{_MONITORS}.fixed_heap", "typed_config": heap},
            {"name": f"{_MONITORS}.global_downstream_max_connections", "typed_config": connections},
        ],
        "actions": [
            {
                "name": f"{_ACTIONS}.{action}",
                "triggers": [
                    {"name": f"{_MONITORS}.fixed_heap", "threshold": {"value": share}},
                ],
            }
            for action, share in _HEAP_ACTIONS.items()
        ],
    }
