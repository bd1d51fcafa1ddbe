"""Work of requests that runs in a thread if it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

INLINE_BODY_BYTES = 64 * 1024
"""Size in bytes up to which the work of a request runs on the event loop."""


async def off_loop(
    size_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> T:
    """Run small work at once and large work in a thread."""
    if size_bytes <= INLINE_BODY_BYTES:
        return work(*arguments, **options)
    return await asyncio.to_thread(work, *arguments, **options)
