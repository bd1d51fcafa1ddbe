"""Import all tables; importing this module completes ``Base.metadata``."""

from __future__ import annotations

from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.base import Base
from fairserve.platform.db.batches import Batch, BatchResult, File, FilePart
from fairserve.platform.db.console import ConsoleSession
from fairserve.platform.db.contracts import Contract, Price
from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.exports import ReportExport, ReportExportPart
from fairserve.platform.db.fleet import FleetAlias, FleetDrain, FleetWorker
from fairserve.platform.db.identity import ApiKey, App, AppLimits, EndUser, Tenant, TokenProfile
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.ledger import (
    LedgerCall,
    LedgerInteraction,
    OpenInteraction,
    ThrottlingEvent,
)
from fairserve.platform.db.operations import (
    AuditEntry,
    InstallationFact,
    SchemaInfo,
    ServerLease,
    ThrottlingSetting,
)
from fairserve.platform.db.profiles import ProfileVersion
from fairserve.platform.db.programs import ProgramRow, ProgramStep
from fairserve.platform.db.responses import ConversationItem, StoredConversation, StoredResponse
from fairserve.platform.db.usage import (
    UsageCalls,
    UsageDirty,
    UsageRejections,
    UsageRuns,
    UsageState,
)
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent

__all__ = [
    "AlarmRow",
    "ApiKey",
    "App",
    "AppLimits",
    "AuditEntry",
    "Base",
    "Batch",
    "BatchResult",
    "ConsoleSession",
    "Contract",
    "ConversationItem",
    "EndUser",
    "Erasure",
    "File",
    "FilePart",
    "FleetAlias",
    "FleetDrain",
    "FleetWorker",
    "InstallationFact",
    "JobState",
    "LedgerCall",
    "LedgerInteraction",
    "OpenInteraction",
    "Price",
    "ProfileVersion",
    "ProgramRow",
    "ProgramStep",
    "ReportExport",
    "ReportExportPart",
    "SchemaInfo",
    "ServerLease",
    "StoredConversation",
    "StoredResponse",
    "Tenant",
    "ThrottlingEvent",
    "ThrottlingSetting",
    "TokenProfile",
    "UsageCalls",
    "UsageDirty",
    "UsageRejections",
    "UsageRuns",
    "UsageState",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookEvent",
]

metadata = Base.metadata
