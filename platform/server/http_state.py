"""The state that endpoints find on ``app.state``, with its types.

FastAPI's state is untyped, and the endpoints of a room cannot import the server. So the names that exist
there are exactly the fields of :class:`HttpState` and, while the platform runs, :class:`RunningState`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields

from fastapi import FastAPI
from starlette.types import Scope

from fairserve.platform.background.alarms.watch import AlarmWatch
from fairserve.platform.background.jobs.service import JobRequests
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.status import StatusLine
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsLedger, ServingRight
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.tenant_calls import TenantCalls
from fairserve.platform.server.metrics.metrics import Metrics
from fairserve.platform.server.metrics.requests import RequestMetrics
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.batches.service import Batches
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.interactions.service import RunParts
from fairserve.platform.serving.messages.endpoint import TokenCounts
from fairserve.platform.serving.programs.service import Programs
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.service import Responses
from fairserve.platform.tenancy.auth import Authenticator
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.platform.tuning.preview.service import Previews


@dataclass(frozen=True)
class HttpState:
    """State of an application from its creation on."""

    settings: Settings
    console: ConsoleState
    request_metrics: RequestMetrics
    abort_connection: Callable[[Scope], None] | None = None
    """Drops the connection of a request in progress; set by the process that serves it."""


@dataclass(frozen=True)
class RunningState:
    """State of an application while its platform runs."""

    control: ControlService
    alarms: AlarmWatch
    clients: Clients
    metrics: Metrics
    history: History
    tenant_calls: TenantCalls
    tenancy: TenancyParts
    fleet: FleetParts
    runs: RunParts
    preview: Previews
    models: Models
    decisions: DecisionService
    completions: Completions
    responses: Responses
    conversations: Conversations
    token_counts: TokenCounts
    programs: Programs
    files: Files
    batches: Batches
    session_factory: SessionFactory
    status: StatusLine
    ledger: RowsLedger
    jobs: JobRequests
    draining: asyncio.Event
    lease: ServingRight | None
    authenticator: Authenticator


def put_on(app: FastAPI, state: HttpState | RunningState) -> None:
    """Make the fields of ``state`` attributes of ``app.state``."""
    for field in fields(state):
        setattr(app.state, field.name, getattr(state, field.name))
