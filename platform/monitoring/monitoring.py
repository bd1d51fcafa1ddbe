"""Composition of the monitoring: activity and views of clients, metrics, and the history.

It listens to control and reads it through its port; control does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.messages import Client
from fairserve.platform.control.service import ControlService
from fairserve.platform.monitoring.activity import Activity
from fairserve.platform.monitoring.app_calls import AppCalls
from fairserve.platform.monitoring.call_metrics import CallMetrics
from fairserve.platform.monitoring.client_shares import ClientShares
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.history import History, PoolMember
from fairserve.platform.monitoring.tenant_calls import TenantCalls


class Monitoring:
    """All parts of the monitoring, created before control's first call, for use on its event loop."""

    def __init__(
        self,
        control: ControlService,
        members: Callable[[], Iterable[PoolMember]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = utc_s,
    ) -> None:
        """``members`` returns the workers of the pool; the clocks are control's."""

        def entitled(clients: Collection[Client]) -> dict[Client, float]:
            return control.entitlements(clients).service()

        self.activity = Activity(entitled, clock, control.tier_weight)
        self.app_calls = AppCalls()
        self.call_metrics = CallMetrics()
        for listener in (self.activity, self.app_calls, self.call_metrics):
            control.subscribe(listener)
        self.client_shares = ClientShares(control, self.activity)
        self.tenant_calls = TenantCalls(self.app_calls, self.client_shares, self.activity, clock)
        self.clients = Clients(control, self.activity, self.client_shares, clock, wall)
        self.history = History(control, self.activity, members, clock, wall)
