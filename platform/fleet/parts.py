"""The running parts of the server that the views and changes of the fleet use."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.fleet.fleet_file import FleetFileWatch
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.supervisor import Supervisor


@dataclass(frozen=True)
class FleetParts:
    """Built by the server when it starts; endpoints find it as ``app.state.fleet``."""

    control: ControlService
    sessions: SessionFactory
    running: RunningFleet
    pool: WorkerPool
    models: Models
    model_pools: ModelPools
    supervisor: Supervisor | None
    """None: no worker is embedded."""
    watch: FleetFileWatch | None
    """None: there is no fleet file."""
