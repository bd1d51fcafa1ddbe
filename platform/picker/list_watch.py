"""Follow a list of objects of the Kubernetes API: read it, then watch its changes.

A watch continues from the version of the list. One that ends normally is started again from the last
version seen; if the API no longer has that version (410 Gone), or after ``RESYNC_S``, the whole list is
read again, so that a missed event is corrected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson

RESYNC_S = 300.0
"""Longest time between two readings of the whole list."""
WATCH_S = 60
"""Seconds after which the API ends a watch."""
PAUSE_S = 0.1
"""Pause between two watches."""
GONE = 410

Objects = Mapping[str, Mapping[str, Any]]
"""Objects by name."""
Request = Callable[..., Awaitable[Any]]
"""Sends a request of the API with these parameters of the query, and returns its open response."""


class ApiError(Exception):
    """The API answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the Kubernetes API answered {status}: {message}")
        self.status = status


class ListWatch:
    """One list. :meth:`states` yields it whole whenever it changes; the caller starts it again after an
    error.
    """

    def __init__(self, request: Request, clock: Callable[[], float] = time.monotonic) -> None:
        self._request = request
        self._clock = clock
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._version = ""

    async def states(self) -> AsyncIterator[Objects]:
        """Yield the objects now and after each change, without end. Raises ApiError or OSError."""
        while True:
            await self._list()
            yield self._objects
            listed_s = self._clock()
            while self._clock() - listed_s < RESYNC_S:
                try:
                    async for event in self._watch():
                        if self._take(event):
                            yield self._objects
                except ApiError as error:
                    if error.status != GONE:
                        raise
                    break
                await asyncio.sleep(PAUSE_S)

    async def _list(self) -> None:
        async with await self._request() as response:
            body = await _checked(response)
        self._objects = {_name(each): each for each in body.get("items") or ()}
        self._version = (body.get("metadata") or {}).get("resourceVersion", "")

    async def _watch(self) -> AsyncIterator[Mapping[str, Any]]:
        response = await self._request(
            watch=True,
            resource_version=self._version,
            timeout_seconds=WATCH_S,
            allow_watch_bookmarks=True,
        )
        async with response:
            if response.status != 200:
                await _checked(response)
            async for line in response.content:
                if line.strip():
                    yield orjson.loads(line)

    def _take(self, event: Mapping[str, Any]) -> bool:
        """Apply an event; return whether the objects have changed. Raises ApiError."""
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(int(found.get("code") or 0), str(found.get("message")))
        self._version = found["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            return self._objects.pop(_name(found), None) is not None
        self._objects[_name(found)] = found
        return True


def _name(found: Mapping[str, Any]) -> str:
    return str(found["metadata"]["name"])


async def _checked(response: Any) -> dict[str, Any]:
    """Return the body of a response. Raises ApiError for a status other than 200."""
    raw = await response.read()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = {}
    if response.status != 200 or not isinstance(body, dict):
        message = body.get("message", "") if isinstance(body, dict) else ""
        raise ApiError(response.status, message or "no reason given")
    return body
