"""Memory for the bodies of requests in progress: a budget for the server, and a share for each tenant.

A body is reserved before it is read, by its declared length or as it arrives, and released with the
request that it belongs to: the body of a waiting call stays in memory as long as the call does.

Weakness: bytes are counted as they arrive; parsed JSON and token ids take several times as much.
"""

from __future__ import annotations

from fairserve.platform.base.errors import BodyTooLargeError, RateLimitedError, UnavailableError
from fairserve.platform.base.shared_limit import SharedLimit

RETRY_S = "5"


def check_body_size(size_bytes: int, max_bytes: int, what: str = "body") -> None:
    """Raise BodyTooLargeError if a body has, or declares, more bytes than allowed."""
    if size_bytes > max_bytes:
        raise BodyTooLargeError(
            f"the {what} has {size_bytes} bytes or more; allowed here: {max_bytes}"
        )


def draining_error() -> UnavailableError:
    """Return the error of a request that arrives while the server drains."""
    return UnavailableError(
        "the server is stopping; send the request to another one, or again later",
        code="draining",
        headers={"Retry-After": RETRY_S},
    )


class BodyMemory:
    """Bytes in use, in all and by owner (a tenant, or the operators). O(1) for each change.

    One body fits an owner's share, and one owner's share the budget.
    """

    def __init__(self, max_bytes: int, owner_share: float, max_body_bytes: int) -> None:
        self._bytes = SharedLimit(max(max_bytes, max_body_bytes), owner_share, max_body_bytes)

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use."""
        return self._bytes.used

    def reserve(self, owner: str, size_bytes: int) -> None:
        """Take bytes for an owner. Raises RateLimitedError or UnavailableError, and takes nothing."""
        full = self._bytes.take(owner, size_bytes)
        if full == "owner":
            raise RateLimitedError(
                f"requests of this tenant in progress have bodies of {self._bytes.of(owner)} bytes, and"
                f" this one would add {size_bytes}; allowed now: {self._bytes.share(owner)}. Retry when"
                " some have ended",
                code="body_share_full",
                headers={"Retry-After": RETRY_S},
            )
        if full == "all":
            raise UnavailableError(
                "the server has no memory left for the bodies of more requests; retry later",
                code="body_memory_full",
                headers={"Retry-After": RETRY_S},
            )

    def release(self, owner: str, size_bytes: int) -> None:
        """Return bytes that were reserved."""
        self._bytes.release(owner, size_bytes)


class BodyReservation:
    """The bytes of one request. It has one holder: the request, or the call that outlives it."""

    def __init__(self, memory: BodyMemory, owner: str) -> None:
        self._memory, self._owner = memory, owner
        self.size_bytes = 0
        self.held_by_call = False
        """True if a call owns it and releases it at its end."""

    def grow(self, size_bytes: int) -> None:
        """Reserve up to this size. Raises as :meth:`BodyMemory.reserve` does."""
        if size_bytes > self.size_bytes:
            self._memory.reserve(self._owner, size_bytes - self.size_bytes)
            self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Return what is reserved beyond this size."""
        if size_bytes < self.size_bytes:
            self._memory.release(self._owner, self.size_bytes - size_bytes)
            self.size_bytes = size_bytes

    def release(self) -> None:
        """Return the bytes. May be repeated."""
        self.shrink(0)
