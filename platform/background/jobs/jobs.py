"""Registry of all background jobs."""

from __future__ import annotations

from collections.abc import Mapping

from fairserve.platform.background.jobs.job import Job, JobContext, Stopping
from fairserve.platform.background.retention import delete_old
from fairserve.platform.background.webhooks.delivery import deliver_due
from fairserve.platform.reporting.exports.work import any_exports, expire_exports, make_exports
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.tenancy.profiles.learning import learn_profiles


def _roll_up(context: JobContext, stopping: Stopping) -> int:
    roll_up(context.sessions, stopping=stopping)
    return 0


def _learn(context: JobContext, stopping: Stopping) -> int:
    options = context.settings.tenancy.learning_options
    return 0 if options is None else learn_profiles(context.sessions, options, stopping=stopping)


def _delete_old(context: JobContext, stopping: Stopping) -> int:
    deleted = 0
    while not stopping() and (rows := delete_old(context.sessions, context.settings)):
        deleted += rows
    return deleted


def _deliver(context: JobContext, stopping: Stopping) -> int:
    return deliver_due(
        context.sessions, context.settings.background, context.hasher, stopping=stopping
    )


def _export(context: JobContext, stopping: Stopping) -> int:
    if not any_exports(context.sessions):
        return 0
    made = make_exports(context.sessions, context.settings, stopping=stopping)
    return made + expire_exports(context.sessions)


ROLLUP_INTERVAL_S = 1.0
"""Seconds between passes over what changed in the ledger; longer ones rest longer."""
PROFILES_INTERVAL_S = 30.0
"""Seconds between examinations of apps whose profile is not learned yet; others every ten minutes."""
WEBHOOKS_INTERVAL_S = 1.0
"""Seconds between checks for webhook deliveries that are due."""
EXPORTS_INTERVAL_S = 2.0
"""Seconds between checks for requested report exports."""

_ALL = (
    Job(
        "rollup",
        "rolls up the ledger for usage reports",
        lambda _: ROLLUP_INTERVAL_S,
        _roll_up,
        rest=50.0,  # a pass sums the rows of this quarter hour anew: 0.7 s of CPU for 50,000 calls
    ),
    Job(
        "profiles",
        "learns the token profiles of apps from the ledger",
        lambda _: PROFILES_INTERVAL_S,
        _learn,
    ),
    Job(
        "webhooks",
        "sends webhooks",
        lambda _: WEBHOOKS_INTERVAL_S,
        _deliver,
        rest=0.0,
    ),
    Job(
        "exports",
        "runs report exports, and deletes expired ones",
        lambda _: EXPORTS_INTERVAL_S,
        _export,
        rest=1.0,
    ),
    Job(
        "retention",
        "deletes rows that are older than their retention",
        lambda settings: 3600.0,
        _delete_old,
    ),
)

JOBS: Mapping[str, Job] = {job.name: job for job in _ALL}
