"""The members of an InferencePool: pods that its selector names and that are ready.

The pool and the pods are followed through the Kubernetes API (:mod:`.list_watch`), whose client is
imported only here. Each ready pod is a worker for each target port, with the id ``ip:port``. A pod
that is deleted, or no longer ready, gets no new calls and leaves when its calls have ended. While the
API does not answer, the last members stay in force.

Weakness: a change arrives after the pod's own readiness probe; the worker's probe here is faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.schemas import MAX_WORKERS
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.picker.list_watch import ListWatch, Objects
from fairserve.platform.picker.settings import PickerSettings

logger = logging.getLogger(__name__)

GROUP, VERSION, PLURAL = "inference.networking.k8s.io", "v1", "inferencepools"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 30.0
"""Pauses after a failure of the API; each is twice as long as the one before."""
CONNECT_S = 10.0
SILENCE_S = 120.0
"""Seconds without any data after which a connection to the API is given up."""


class InferencePool:
    """Follows one pool. ``apply`` receives its members whenever they change."""

    def __init__(
        self,
        settings: PickerSettings,
        apply: Callable[[FleetPart], None],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        namespace, _, self.name = settings.pool_name.rpartition("/")
        self.namespace = namespace or own_namespace()
        self.synced = False
        """True once pool and pods were read, while the pool exists."""
        self.problem = ""
        """Reason why the members may be old; empty if they are not."""
        self._settings = settings
        self._apply = apply
        self._first_pause_s = first_pause_s
        self._part: FleetPart | None = None

    async def run(self) -> None:
        """Follow the pool until the task is cancelled."""
        pause_s = self._first_pause_s
        while True:
            try:
                async with self._requests() as (pools, pods):
                    await self._follow(pools, pods)
            except Exception as failure:
                error = failure.exceptions[0] if isinstance(failure, ExceptionGroup) else failure
                problem = f"{type(error).__name__}: {error}"
                if problem != self.problem:
                    logger.error(
                        "InferencePool %s/%s cannot be read, its last members stay in force: %s",
                        self.namespace,
                        self.name,
                        problem,
                    )
                pause_s = (
                    self._first_pause_s if not self.problem else min(2 * pause_s, LAST_PAUSE_S)
                )
                self.problem = problem
            await asyncio.sleep(pause_s)

    @contextlib.asynccontextmanager
    async def _requests(self) -> AsyncIterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        """Yield the requests for the pool and for pods, over one client of the API."""
        from kubernetes.aio import client, config

        configuration = client.Configuration()
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException:
            path = os.environ.get("KUBECONFIG") or None
            await config.load_kube_config(path, client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            more = {"_preload_content": False, "_request_timeout": (CONNECT_S, SILENCE_S)}
            pools = partial(
                client.CustomObjectsApi(api).list_namespaced_custom_object,
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                field_selector=f"metadata.name={self.name}",
                **more,
            )
            pods = partial(client.CoreV1Api(api).list_namespaced_pod, self.namespace, **more)
            yield pools, pods

    async def _follow(self, pools: Callable[..., Any], pods: Callable[..., Any]) -> None:
        """Follow the pool, and the pods of its selector, until either fails."""
        following: asyncio.Task[None] | None = None
        before: object = ...
        async with asyncio.TaskGroup() as group:
            async for state in ListWatch(pools).states():
                found = selector_and_ports(state.get(self.name))
                if found == before:
                    continue
                before = found
                if following is not None:
                    following.cancel()
                if found is None:
                    self._no_pool()
                else:
                    following = group.create_task(self._follow_pods(pods, *found))

    async def _follow_pods(
        self, pods: Callable[..., Any], selector: str, ports: tuple[int, ...]
    ) -> None:
        async for found in ListWatch(partial(pods, label_selector=selector)).states():
            self._take(found, ports)

    def _take(self, pods: Objects, ports: tuple[int, ...]) -> None:
        part = FleetPart(workers=tuple(self._workers(pods, ports)))
        if self.problem:
            logger.info("InferencePool %s/%s is read again", self.namespace, self.name)
        self.synced, self.problem = True, ""
        if part != self._part:
            self._part = part
            self._apply(part)

    def _no_pool(self) -> None:
        """Handle a pool that does not exist: it has no members, and the picker is not ready."""
        logger.error("there is no InferencePool %s/%s", self.namespace, self.name)
        self.synced = False
        self.problem = "there is no such InferencePool"
        self._part = FleetPart()
        self._apply(self._part)

    def _workers(self, pods: Objects, ports: tuple[int, ...]) -> list[WorkerSpec]:
        addresses = sorted(filter(None, map(ready_address, pods.values())))
        specs = [self._worker(address, port) for address in addresses for port in ports]
        if len(specs) > MAX_WORKERS:
            logger.error(
                "the pool has %d endpoints; the first %d are used", len(specs), MAX_WORKERS
            )
        return specs[:MAX_WORKERS]

    def _worker(self, host: str, port: int) -> WorkerSpec:
        own = self._settings
        events: tuple[KvEndpoints, ...] = ()
        if own.pool_kv_ports:
            published, _, replay = own.pool_kv_ports.partition(",")
            replays = f"tcp://{host}:{replay}" if replay else ""
            events = (KvEndpoints(f"tcp://{host}:{published}", replays),)
        return WorkerSpec(
            f"{host}:{port}",
            f"http://{host}:{port}",
            kind=own.pool_worker_kind,
            kv_events=events,
            api_key_env=own.pool_worker_key_env,
        )


def own_namespace() -> str:
    """Return the namespace of the service account; ``default`` outside of a cluster."""
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


def selector_and_ports(pool: Mapping[str, Any] | None) -> tuple[str, tuple[int, ...]] | None:
    """Return the label selector and the target ports of a pool; None if there is none.

    Raises ValueError for a pool without either: its selector would name every pod.
    """
    if pool is None:
        return None
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    ports = tuple(int(each["number"]) for each in spec.get("targetPorts") or ())
    if not labels or not ports:
        raise ValueError("the pool has no selector.matchLabels or no targetPorts")
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())), ports


def ready_address(pod: Mapping[str, Any]) -> str | None:
    """Return the address of a pod that is ready and not being deleted, IPv6 in brackets; else None."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or not status.get("podIP"):
        return None
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    if not ready:
        return None
    address = ip_address(status["podIP"])
    return f"[{address}]" if address.version == 6 else str(address)
