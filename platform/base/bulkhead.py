"""Threads and database connections of their own for calls and for management (a bulkhead).

A request that makes no call runs :func:`as_management`. Its work in threads then uses threads of its own
(:class:`RequestThreads`), and its sessions use connections of their own
(:mod:`fairserve.platform.db.engine`): whatever management does, calls wait for neither. Of both kinds,
threads are taken in turns of the owners of the work (:func:`work_for`): tenants, and addresses of
clients whose key is looked up. Both marks are context variables, which tasks and threads inherit from
the request. Cost of work in a thread: a few microseconds beside those of the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fairserve.interactions.rotation import Rotation

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS = 20
"""Threads of calls and background jobs: as many as their connections, so that none waits for one."""
MANAGEMENT_THREADS = 8
"""Threads of management, beside those of its endpoints."""

INLINE_BODY_BYTES = 64 * 1024
"""Size in bytes up to which the work of a request runs on the event loop."""

_management: ContextVar[bool] = ContextVar("management", default=False)
_sharer: ContextVar[str] = ContextVar("sharer", default="")


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


def work_for(sharer: str) -> None:
    """Mark what the present task does from now on as work for a tenant, or another owner of turns."""
    _sharer.set(sharer)


class TurnThreads(ThreadPoolExecutor):
    """Threads that the owners of work, such as tenants, take in turns.

    Work of an owner waits for at most one piece of each other owner. Whoever adds work bounds the queue.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._order = threading.Lock()
        self._waiting: Rotation[tuple[Future[Any], Callable[[], Any]]] = Rotation()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` in a thread, in the turn of the owner of the present task."""
        return self.submit_for(_sharer.get(), partial(fn, *args, **kwargs))

    def submit_for(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` in a thread, in its owner's turn.

        Cancellation removes it from the queue; work that has started keeps its thread until its end.
        """
        future: Future[T] = Future()
        with self._order:
            self._waiting.add(owner, (future, work))
        super().submit(self._run_next)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads; with ``cancel_futures`` the work that waits is dropped."""
        if cancel_futures:
            with self._order:
                while self._waiting:
                    self._waiting.pop()[0].cancel()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _run_next(self) -> None:
        with self._order:
            if not self._waiting:
                return  # dropped by the end of the threads
            future, work = self._waiting.pop()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


class RequestThreads(TurnThreads):
    """The default executor of the event loop: threads of calls, and others of management."""

    def __init__(self) -> None:
        super().__init__(CALL_THREADS, "calls")
        self._management = TurnThreads(MANAGEMENT_THREADS, "management")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` in a thread of the kind of the present task."""
        if is_management():
            return self._management.submit(fn, *args, **kwargs)
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads of both kinds."""
        self._management.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


async def off_loop(
    size_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> T:
    """Run small work of a request at once, and large work in a thread."""
    if size_bytes <= INLINE_BODY_BYTES:
        return work(*arguments, **options)
    return await asyncio.to_thread(work, *arguments, **options)
