"""Checks of URLs, whose DNS lookups occupy threads: a lookup cannot be cancelled, and may be slow.

A tenant has a share of the threads, so that names that answer slowly delay the lookups of its own
deliveries only.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from fairserve.platform.background.webhooks.guard import Guard, Target, UnsafeUrlError
from fairserve.platform.base.shared_limit import SharedLimit


class NameLookups:
    """Belongs to one event loop."""

    def __init__(self, guard: Guard, threads: int, tenant_share: float) -> None:
        self._guard = guard
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="webhook names")
        self._threads = SharedLimit(threads, tenant_share)

    async def check(self, tenant: str, url: str) -> Target:
        """Return the addresses of a URL that may be called. Raises UnsafeUrlError."""
        if self._threads.take(tenant) is not None:
            raise UnsafeUrlError("too many names of this tenant are being looked up")
        looking_up = self._executor.submit(self._guard.check, url)
        looking_up.add_done_callback(lambda _: self._threads.release(tenant))
        return await asyncio.wrap_future(looking_up)

    def close(self) -> None:
        """End the threads and drop queued lookups."""
        self._executor.shutdown(wait=False, cancel_futures=True)
