"""Options of control: the bounds of its queue, and how quotas reject calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairserve.platform.control.settings import ControlSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.scheduling.dispatch.admission import AdmissionOptions
from fairserve.scheduling.dispatch.queue_places import QueueBounds

USERS_OF_TENANT = 4
"""Part of its tenant's share that one user may have: one of this many."""
REOPENED_WITHIN = 2.0
"""Idle time-outs after its end within which a further call reopens an interaction."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Bounds of control; see the settings of the same names."""

    max_queue_wait_s: float = 360.0
    max_queued_calls: int = 10_000
    """Queued calls of each model."""
    tenant_share: float = 1 / 4
    """Largest share of one tenant in the queued calls of a model, and in the live interactions."""
    user_share: float = 1 / 16
    """The same for one user."""
    lease_s: float = 60.0
    reopen_grace_s: float = 600.0
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)

    @property
    def queue_bounds(self) -> QueueBounds:
        """Bounds on the queued calls of a model."""
        calls = self.max_queued_calls
        of_tenant, of_user = (int(calls * each) for each in (self.tenant_share, self.user_share))
        return QueueBounds(calls, max(1, of_tenant), max(1, of_user))


def control_options(settings: ControlSettings, tenancy: TenancySettings) -> ControlOptions:
    """Return the bounds of the queue, and how quotas reject calls."""
    return ControlOptions(
        max_queue_wait_s=settings.max_queue_wait_s,
        max_queued_calls=settings.max_queued_calls,
        tenant_share=settings.max_tenant_share,
        user_share=settings.max_tenant_share / USERS_OF_TENANT,
        reopen_grace_s=tenancy.interaction_idle_timeout_s * REOPENED_WITHIN,
        admission=AdmissionOptions(
            contracts=tenancy.quota_enforcement != "off",
            rates_cut_runs=tenancy.quota_enforcement == "every_call",
        ),
    )
