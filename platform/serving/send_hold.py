"""A pause in sending calls, after some were not accepted."""

from __future__ import annotations

from collections.abc import Callable


class SendHold:
    """Nothing is sent before a time. Whoever waits for its end asks :meth:`lasts` first.

    The clock is read once for both: a wait that began with a second look at it would have no end where
    the hold ended between the two.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.until_s: float | None = None
        """End of the hold; None from the first :meth:`lasts` after it on."""

    def extend(self, seconds: float) -> None:
        """Hold for this time from now on, or longer if it does so already."""
        self.until_s = max(self.until_s or 0.0, self._clock() + seconds)

    def lasts(self) -> bool:
        """Return whether it holds now; at its end it ends."""
        if self.until_s is not None and self._clock() >= self.until_s:
            self.until_s = None
        return self.until_s is not None
