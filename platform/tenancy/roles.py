"""Roles of operators: a viewer reads, an operator also operates, an admin does everything.

A role restricts an admin key, and a person who signs in to the console through OpenID Connect. Keys of
tenants and apps have no role. :data:`NEEDED` is the only statement of the role that a route needs, by
its method and its path as the router has it; a route that is missing there needs an admin. The
dependencies that authenticate (:mod:`fairserve.platform.tenancy.principals` and the console's guard)
check it.

Data of end users are for admins: exports, user data, outputs of programs. Cost of a check: two look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fairserve.platform.base.errors import PermissionDeniedError
from fairserve.platform.base.roles import Role, includes

_ROUTES: Mapping[Role, str] = {
    "viewer": """
        GET /metrics
        GET /admin/alarms
        GET /admin/apps
        GET /admin/audit
        GET /admin/clients
        GET /admin/clients/flooding
        GET /admin/clients/{tenant_id}/{app_id}/{user:path}
        GET /admin/cluster
        GET /admin/cluster/aliases
        GET /admin/cluster/workers
        GET /admin/cluster/workers/{worker_id}
        GET /admin/interactions
        GET /admin/jobs
        GET /admin/keys
        GET /admin/live
        GET /admin/prices
        GET /admin/tenants
        GET /admin/tenants/{tenant_id}
        GET /admin/tenants/{tenant_id}/keys
        GET /admin/throttling
        GET /admin/throttling/events
        GET /admin/throttling/events/{call_id}
        GET /admin/throttling/history
        GET /admin/usage
        GET /admin/usage/interactions
        GET /admin/users
        GET /admin/users/{tenant_id}/{user:path}
        GET /admin/webhooks
        GET /admin/webhooks/dead
        GET /v1/alarms
        GET /v1/apps
        GET /v1/apps/{app_id}
        GET /v1/apps/{app_id}/keys
        GET /v1/apps/{app_id}/profile
        GET /v1/apps/{app_id}/profile/history
        GET /v1/clients/flooding
        GET /v1/interactions
        GET /v1/interactions/{interaction_id:path}/graph
        GET /v1/quotas/preview
        GET /v1/throttling/events
        GET /v1/throttling/events/{call_id}
        GET /v1/usage
        GET /v1/usage/interactions
        GET /v1/webhooks
        GET /v1/webhooks/{webhook_id}
        GET /v1/webhooks/{webhook_id}/deliveries
        GET /console/status
        GET /console/search
        GET /console/overview
        GET /console/overview/stream
        GET /console/alarms
        GET /console/alarms/stream
        GET /console/throttling
        GET /console/throttling/stream
        GET /console/refusals
        GET /console/refusals/stream
        GET /console/refusals/{call_id}
        GET /console/clients
        GET /console/clients/stream
        GET /console/clients/tenants
        GET /console/clients/tenants/{tenant_id}
        GET /console/clients/apps
        GET /console/clients/apps/{app_id}
        GET /console/clients/stream/{tenant_id}/{app_id}/{user:path}
        GET /console/clients/{tenant_id}/{app_id}/{user:path}
        GET /console/clients/tenants/{tenant_id}/keys
        GET /console/clients/apps/{app_id}/keys
        GET /console/clients/apps/{app_id}/users
        GET /console/quota-preview
        GET /console/prices
        GET /console/webhooks
        GET /console/webhooks/{tenant_id}
        GET /console/interactions
        GET /console/interactions/stream
        GET /console/interactions/stream/{tenant_id}/{app_id}/{run_id:path}
        GET /console/interactions/{tenant_id}/{app_id}/{run_id:path}
        GET /console/usage
        GET /console/usage/report
        GET /console/cluster
        GET /console/cluster/stream
        GET /console/keys
        GET /console/audit
        POST /console/sign-out
    """,
    "operator": """
        POST /admin/alarms/{alarm_id}/acknowledge
        PUT /admin/throttling
        POST /admin/throttling/preview
        POST /admin/cluster/workers/{worker_id}/drain
        POST /admin/cluster/workers/{worker_id}/undrain
        DELETE /admin/interactions/{app_id}/{interaction_id:path}
        PUT /admin/users/{tenant_id}/{user:path}
        DELETE /admin/users/{tenant_id}/{user:path}
        POST /admin/jobs/{job}/run
        POST /console/alarms/{alarm_id}/acknowledge
        POST /console/throttling
        POST /console/throttling/preview
        POST /console/throttling/revert
        POST /console/cluster/workers/{worker_id}/drain
        POST /console/cluster/workers/{worker_id}/undrain
        POST /console/cluster/jobs/{job}/run
        POST /console/interactions/cancel/{tenant_id}/{app_id}/{run_id:path}
        POST /console/clients/{tenant_id}/{app_id}/{user:path}
    """,
    "admin": """
        POST /admin/cluster/workers
        PUT /admin/cluster/workers/{worker_id}
        DELETE /admin/cluster/workers/{worker_id}
        PUT /admin/cluster/aliases/{name:path}
        DELETE /admin/cluster/aliases/{name:path}
        POST /admin/keys
        POST /admin/keys/rotate
        PATCH /admin/keys/{key_id}
        DELETE /admin/keys/{key_id}
        POST /admin/prices
        DELETE /admin/prices/{price_id}
        POST /admin/tenants
        PATCH /admin/tenants/{tenant_id}
        DELETE /admin/tenants/{tenant_id}
        POST /admin/tenants/{tenant_id}/restore
        POST /admin/tenants/{tenant_id}/keys
        POST /admin/tenants/{tenant_id}/keys/rotate
        PATCH /admin/tenants/{tenant_id}/keys/{key_id}
        DELETE /admin/tenants/{tenant_id}/keys/{key_id}
        PUT /admin/apps/{app_id}/profile
        GET /admin/usage/exports
        POST /admin/usage/exports
        GET /admin/usage/exports/{export_id}
        GET /admin/usage/exports/{export_id}/file
        DELETE /admin/usage/exports/{export_id}
        POST /v1/apps
        PATCH /v1/apps/{app_id}
        DELETE /v1/apps/{app_id}
        POST /v1/apps/{app_id}/restore
        POST /v1/apps/{app_id}/keys
        POST /v1/apps/{app_id}/keys/rotate
        PATCH /v1/apps/{app_id}/keys/{key_id}
        DELETE /v1/apps/{app_id}/keys/{key_id}
        GET /v1/interactions/{interaction_id:path}
        GET /v1/interactions/{interaction_id:path}/events
        GET /v1/usage/exports
        POST /v1/usage/exports
        GET /v1/usage/exports/{export_id}
        GET /v1/usage/exports/{export_id}/file
        DELETE /v1/usage/exports/{export_id}
        GET /v1/user-data
        DELETE /v1/user-data
        POST /v1/webhooks
        PATCH /v1/webhooks/{webhook_id}
        DELETE /v1/webhooks/{webhook_id}
        POST /v1/webhooks/{webhook_id}/rotate
        POST /v1/webhooks/{webhook_id}/test
        POST /v1/webhooks/{webhook_id}/deliveries/{event_id}/replay
        POST /v1/webhooks/{webhook_id}/replay
        POST /console/clients/tenants
        POST /console/clients/tenants/{tenant_id}
        POST /console/clients/tenants/{tenant_id}/keys
        POST /console/clients/tenants/{tenant_id}/keys/rotate
        POST /console/clients/tenants/{tenant_id}/keys/{key_id}
        GET /console/clients/apps/new
        POST /console/clients/apps/new
        POST /console/clients/apps/{app_id}/keys
        POST /console/clients/apps/{app_id}/keys/rotate
        POST /console/clients/apps/{app_id}/keys/{key_id}
        POST /console/clients/apps/{app_id}
        POST /console/clients/apps/{app_id}/profile
        POST /console/cluster/workers
        POST /console/cluster/workers/{worker_id}/remove
        POST /console/cluster/aliases
        POST /console/cluster/aliases/remove
        POST /console/prices
        POST /console/prices/{price_id}/delete
        POST /console/webhooks/{tenant_id}
        POST /console/webhooks/{tenant_id}/{webhook_id}
        POST /console/audit/{entry_id}/restore
        POST /console/keys
        POST /console/keys/rotate
        POST /console/keys/{key_id}
    """,
}

NEEDED: Mapping[str, Role] = MappingProxyType(
    {route.strip(): role for role, lines in _ROUTES.items() for route in lines.strip().splitlines()}
)
"""Role that a route needs, by ``METHOD path``."""


def needed_role(route: str) -> Role:
    """Return the role that a route needs, given as ``METHOD path``."""
    return NEEDED.get(route, "admin")


def require_role(role: Role, needed: Role) -> None:
    """Raise PermissionDeniedError, which names the role needed, unless ``role`` includes it."""
    if not includes(role, needed):
        raise PermissionDeniedError(
            f"this needs the role {needed}; yours is {role}", code="insufficient_role"
        )
