"""Separate threads and database connections for calls and for management (a bulkhead).

A request that makes no call runs :func:`as_management`. Its work in threads then uses threads of its own
(:class:`RequestThreads`), and its sessions use connections of their own
(:mod:`fairserve.platform.db.engine`): whatever management does, calls wait for neither. The mark is a
context variable, which tasks and threads inherit from the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS = 20
"""Threads of calls and background jobs: as many as their connections, so that none waits for one."""
MANAGEMENT_THREADS = 8
"""Threads of management, beside those of its endpoints."""

_management: ContextVar[bool] = ContextVar("management", default=False)


def is_management() -> bool:
    """Return whether the present task or thread works for a request that makes no call."""
    return _management.get()


@contextmanager
def as_management() -> Iterator[None]:
    """Mark the work of the block as management."""
    token = _management.set(True)
    try:
        yield
    finally:
        _management.reset(token)


class RequestThreads(ThreadPoolExecutor):
    """The default executor of the event loop: threads of calls, and others of management."""

    def __init__(self) -> None:
        super().__init__(CALL_THREADS, thread_name_prefix="calls")
        self._management = ThreadPoolExecutor(MANAGEMENT_THREADS, thread_name_prefix="management")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` in a thread of the kind of the present task."""
        if is_management():
            return self._management.submit(fn, *args, **kwargs)
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads of both kinds."""
        self._management.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)
