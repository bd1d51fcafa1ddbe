"""Import all tables; importing this module completes ``Base.metadata``."""

from __future__ import annotations

from fairserve.platform.db import (  # noqa: F401
    alarms,
    batches,
    console,
    contracts,
    erasures,
    exports,
    fleet,
    identity,
    jobs,
    ledger,
    operations,
    profiles,
    programs,
    responses,
    usage,
    webhooks,
)
from fairserve.platform.db.base import Base

metadata = Base.metadata
