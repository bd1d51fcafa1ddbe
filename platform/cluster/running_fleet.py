"""Carries out what the fleet shall be: joins, drains and removes workers as the sources change.

Belongs to the event loop; what it shows may be read from any thread, because it is replaced whole.
Draining workers are looked at twice a second and removed when control sees no call on them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

from fairserve.platform.cluster.fleet import (
    Desired,
    Drain,
    FleetPart,
    Join,
    Present,
    Remove,
    Source,
    after,
    changes,
    merge,
)
from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.control.port import ClusterView

logger = logging.getLogger(__name__)

LOOK_S = 0.5
APPLY_TIMEOUT_S = 30.0


class FleetPool(Protocol):
    """What the fleet needs of the worker pool."""

    def add(self, spec: WorkerSpec) -> None:
        """Watch a worker; it joins when it is healthy."""
        ...

    def drain(self, worker_id: str) -> None:
        """No new calls for it."""
        ...

    def remove(self, worker_id: str) -> None:
        """It is gone."""
        ...


class FleetModels(Protocol):
    """What the fleet tells the models' pools."""

    def set_fleet(self, desired: Desired) -> None:
        """What holds from now on."""
        ...

    def worker_drains(self, worker_id: str) -> None:
        """It begins with no more calls."""
        ...

    def worker_left(self, worker_id: str) -> None:
        """It is no longer one of the fleet."""
        ...


class RunningFleet:
    """The fleet of one process."""

    def __init__(
        self,
        pool: FleetPool,
        models: FleetModels,
        cluster: Callable[[], Awaitable[ClusterView]],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        """``cluster`` asks control which workers have calls."""
        self._pool = pool
        self._models = models
        self._cluster = cluster
        self._look_s = look_s
        self._parts: dict[Source, FleetPart] = {}
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._draining = asyncio.Event()
        self.desired = Desired()
        """To be read only, from any thread."""
        self.present: Mapping[str, Present] = {}
        """What is there, embedded workers aside; to be read only, from any thread."""

    def without(self, source: Source) -> Desired:
        """What the other sources say."""
        return merge({name: part for name, part in self._parts.items() if name != source})

    def set_part(self, source: Source, part: FleetPart, drop: str = "") -> None:
        """One source says something new. ``drop`` names a worker that is removed without draining."""
        self._parts[source] = part
        self.desired = merge(self._parts)
        self._models.set_fleet(self.desired)
        if drop in self.present:
            there = replace(self.present[drop], draining=True, idle=True)
            self.present = {**self.present, drop: there}
        self._step()

    def replace_part(self, source: Source, load: Callable[[], FleetPart], drop: str = "") -> None:
        """The same from another thread, after a change was stored; returns when it holds.

        ``load`` reads what is stored, so that of two changes the later one holds in the end.
        """
        with self._lock:
            part = load()
            done: concurrent.futures.Future[None] = concurrent.futures.Future()

            def apply() -> None:
                try:
                    self.set_part(source, part, drop)
                except BaseException as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)

            self._loop.call_soon_threadsafe(apply)
            done.result(APPLY_TIMEOUT_S)

    async def run(self) -> None:
        """Remove workers that have drained, for ever."""
        while True:
            await self._draining.wait()
            draining = [worker_id for worker_id, each in self.present.items() if each.draining]
            try:
                self._look(draining, await self._cluster())
            except Exception:
                logger.exception("a look at the draining workers failed")
            await asyncio.sleep(self._look_s)

    def _look(self, draining: Collection[str], view: ClusterView) -> None:
        """``draining``: those that drained when control was asked; it may not know of others."""
        busy = {worker.worker_id for worker in view.workers if worker.calls}
        self.present = {
            worker_id: replace(there, idle=worker_id not in busy)
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
                    logger.info("worker %s at %s is added", worker.spec.worker_id, worker.spec.url)
                    self._add(worker.spec)
                case Drain(worker_id):
                    logger.info("worker %s drains", worker_id)
                    self._models.worker_drains(worker_id)
                    self._pool.drain(worker_id)
                case Remove(worker_id):
                    logger.info(
                        "worker %s at %s is removed", worker_id, leaving[worker_id].spec.url
                    )
                    self._pool.remove(worker_id)
                    self._models.worker_left(worker_id)
        if any(there.draining for there in self.present.values()):
            self._draining.set()
        else:
            self._draining.clear()
