"""Options of control, derived from the settings."""

from __future__ import annotations

from fairserve.platform.control.lifecycle import ControlOptions
from fairserve.platform.control.settings import ControlSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.scheduling.dispatch.admission import AdmissionOptions


def control_options(settings: ControlSettings, tenancy: TenancySettings) -> ControlOptions:
    """Return the bounds of the queue, and how quotas reject calls."""
    return ControlOptions(
        max_queue_wait_s=settings.max_queue_wait_s,
        max_queued_calls=settings.max_queued_calls,
        tenant_share=settings.max_tenant_share,
        user_share=settings.max_user_share,
        lease_s=settings.lease_s,
        infer_parents=settings.infer_parents,
        reopen_grace_s=settings.interaction_reopen_grace_s,
        admission=AdmissionOptions(
            contracts=tenancy.contract_limits,
            rates_cut_runs=tenancy.contract_rates_cut_runs,
            openings_per_minute=settings.user_openings_per_minute,
        ),
    )
