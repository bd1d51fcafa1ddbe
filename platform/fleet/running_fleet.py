"""Apply the desired fleet: join, drain and remove workers as the sources change.

Belongs to the event loop; its public state may be read from any thread, because it is replaced whole.
Draining workers are checked twice a second and removed once they have no call, except embedded ones,
whose processes continue. A drained worker counts as a worker of its model, whose calls therefore wait,
until no source has the worker any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from fairserve.platform.control.messages import ClusterView
from fairserve.platform.fleet.fleet import (
    Desired,
    Drain,
    DrainNote,
    FleetPart,
    Join,
    Present,
    Remove,
    Source,
    StoredFleet,
    Undrain,
    after,
    changes,
    merge,
)
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)

CHECK_S = 0.5
APPLY_TIMEOUT_S = 30.0


class RunningFleet:
    """The fleet of one process."""

    def __init__(
        self,
        pool: WorkerPool,
        models: ModelPools,
        cluster: Callable[[], Awaitable[ClusterView]],
        *,
        drains: Mapping[str, DrainNote] | None = None,
        check_s: float = CHECK_S,
    ) -> None:
        """``cluster`` reads the workers' calls from control; ``drains`` are in force from the start."""
        self._pool = pool
        self._models = models
        self._cluster = cluster
        self._check_s = check_s
        self._parts: dict[Source, FleetPart] = {}
        self._drains = dict(drains or {})
        if self._drains:
            logger.warning("drained workers, which get no calls: %s", ", ".join(self._drains))
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._draining = asyncio.Event()
        self.desired = Desired()
        """Read-only, from any thread."""
        self.present: Mapping[str, Present] = {}
        """Workers in the pool by id; read-only, from any thread."""

    def without(self, source: Source) -> Desired:
        """Return the parts of the other sources."""
        others = {name: part for name, part in self._parts.items() if name != source}
        return merge(others, self._drains)

    def set_part(self, source: Source, part: FleetPart) -> None:
        """Apply a changed part of one source."""
        self._parts[source] = part
        self._take()

    def set_stored(self, stored: StoredFleet, drop: str = "") -> None:
        """Apply a changed fleet of the database. ``drop`` is removed without draining."""
        self._parts["api"] = stored.part
        self._drains = dict(stored.drains)
        if drop in self.present:
            there = replace(self.present[drop], draining=True, idle=True)
            self.present = {**self.present, drop: there}
        self._take()

    def _take(self) -> None:
        before, self.desired = self.desired, merge(self._parts, self._drains)
        self._models.set_fleet(self.desired)
        for worker_id in before.workers.keys() - self.desired.workers.keys() - self.present.keys():
            self._models.worker_left(worker_id)  # it was drained and removed before
        self._step()

    def reload(self, load: Callable[[], StoredFleet], drop: str = "") -> None:
        """Load and apply the stored fleet, from another thread; return when it is in force.

        ``load`` reads the database, so that the later of two concurrent changes wins.
        """
        with self._lock:
            stored = load()
            done: concurrent.futures.Future[None] = concurrent.futures.Future()

            def apply() -> None:
                try:
                    self.set_stored(stored, drop)
                except BaseException as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)

            self._loop.call_soon_threadsafe(apply)
            done.result(APPLY_TIMEOUT_S)

    def embedded_ready(self, worker_id: str, url: str) -> None:
        """Join an embedded worker whose process has started, unless it is drained."""
        spec = WorkerSpec(worker_id, url)
        self.present = {**self.present, worker_id: Present(spec, "embedded")}
        self._add(spec)
        self._step()

    def embedded_lost(self, worker_id: str) -> None:
        """Handle the end of an embedded worker's process."""
        self.present = {name: there for name, there in self.present.items() if name != worker_id}
        self._pool.remove(worker_id)

    async def run(self) -> None:
        """Remove drained workers until the task is cancelled."""
        while True:
            await self._draining.wait()
            draining = [worker_id for worker_id, each in self.present.items() if each.draining]
            try:
                self._check(draining, await self._cluster())
            except Exception:
                logger.exception("the check of the draining workers failed")
            await asyncio.sleep(self._check_s)

    def _check(self, draining: Collection[str], view: ClusterView) -> None:
        """Check the workers that were draining when ``view`` was read from control."""
        busy = {worker.worker_id for worker in view.workers if worker.calls}
        self.present = {
            worker_id: replace(there, idle=worker_id not in busy and not self._pool.busy(worker_id))
            if there.draining and worker_id in draining
            else there
            for worker_id, there in self.present.items()
        }
        self._step()

    def _add(self, spec: WorkerSpec) -> None:
        try:
            self._pool.add(spec)
        except ValueError as error:
            logger.error("worker %s cannot be added: %s", spec.worker_id, error)
            self.present = {name: p for name, p in self.present.items() if name != spec.worker_id}

    def _step(self) -> None:
        steps = changes(self.desired, self.present)
        leaving = self.present
        self.present = after(self.present, steps)
        for step in steps:
            match step:
                case Join(worker):
                    logger.info("added worker %s at %s", worker.spec.worker_id, worker.spec.url)
                    self._add(worker.spec)
                case Drain(worker_id):
                    logger.info("draining worker %s", worker_id)
                    self._models.worker_drains(worker_id)
                    self._pool.drain(worker_id)
                case Undrain(worker_id):
                    logger.info("undrained worker %s", worker_id)
                    if self._pool.undrain(worker_id):
                        self._models.worker_undrains(worker_id)
                case Remove(worker_id):
                    logger.info("removed worker %s at %s", worker_id, leaving[worker_id].spec.url)
                    self._pool.remove(worker_id)
                    wanted = self.desired.workers.get(worker_id)
                    if wanted is None or not wanted.drained:
                        self._models.worker_left(worker_id)
        if any(there.draining and not there.idle for there in self.present.values()):
            self._draining.set()
        else:
            self._draining.clear()
