"""The worker class for each loop of a cost model."""

from __future__ import annotations

from collections.abc import Mapping

from fairserve.engine.simulated.cost_model import Loop
from fairserve.engine.simulated.mixed_worker import MixedWorker
from fairserve.engine.simulated.paged_worker import PagedWorker
from fairserve.engine.simulated.worker import SimulatedWorker

WORKERS: Mapping[Loop, type[SimulatedWorker]] = {
    "prefill-first": SimulatedWorker,
    "mixed": MixedWorker,
    "paged": PagedWorker,
    "vtc-artifact": SimulatedWorker,
}
"""Worker class by loop: ``factory(costs, scheduler, block_tokens, listener)``."""
