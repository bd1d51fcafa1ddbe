"""Endpoints of workers as gateways name them, ``ip:port``, and the workers that they belong to.

Gateways send a call to an address, not to a name. A worker whose URL has a host name, a path or TLS is
no endpoint and gets no call of a gateway.
"""

from __future__ import annotations

from collections.abc import Collection

from fairserve.platform.fleet.direct_address import direct_address
from fairserve.platform.fleet.pool import WorkerPool


class Endpoints:
    """The endpoints of a pool. O(workers) for each call."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def of(self, worker_id: str) -> str | None:
        """Return the endpoint of a worker; None if it has left or is none."""
        member = self._pool.member(worker_id)
        return None if member is None else direct_address(member.spec.url)

    def worker(self, endpoint: str) -> str | None:
        """Return the worker of an endpoint; None if there is none."""
        return next(iter(self.workers({endpoint})), None)

    def workers(self, endpoints: Collection[str]) -> frozenset[str]:
        """Return the workers of endpoints; unknown ones are ignored."""
        return frozenset(
            member.worker_id
            for member in self._pool.members()
            if direct_address(member.spec.url) in endpoints
        )

    def allowed(self, hinted: frozenset[str] | None) -> frozenset[str] | None:
        """Return the workers among which a call is placed: those of the hint that are endpoints.

        None: all workers, each of which is an endpoint.
        """
        if hinted is not None:
            return hinted
        members = self._pool.members()
        reachable = frozenset(
            member.worker_id for member in members if direct_address(member.spec.url) is not None
        )
        return None if len(reachable) == len(members) else reachable

    def ready(self, workers: Collection[str]) -> list[str]:
        """Return the workers that take calls now, the least busy first."""
        up = [each for each in workers if self._pool.serves(each)]
        return sorted(up, key=self._sequences)

    def any_ready(self, allowed: frozenset[str] | None) -> str | None:
        """Return the endpoint of the least busy worker of any model; None if there is none."""
        workers = [
            member.worker_id
            for member in self._pool.members()
            if direct_address(member.spec.url) is not None
            and (allowed is None or member.worker_id in allowed)
        ]
        return next((self.of(each) for each in self.ready(workers)), None)

    def _sequences(self, worker_id: str) -> int:
        member = self._pool.member(worker_id)
        return 0 if member is None else member.watched.sequences
