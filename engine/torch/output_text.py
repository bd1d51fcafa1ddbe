"""The growing text of one output, detokenised and cut at the first stop string."""

from __future__ import annotations

from fairserve.engine.torch.detokenizer import Detokenizer
from fairserve.engine.torch.stop_strings import StopStrings


class OutputText:
    """The text of one output. Call ``push`` with each token, and ``flush`` once at the end."""

    def __init__(
        self, detokenizer: Detokenizer, stop: tuple[str, ...], *, with_stop: bool = False
    ) -> None:
        """``with_stop`` shows the stop string, too."""
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop, included=with_stop)
        self.characters = 0
        """Characters of the text so far, including those held back or cut off by a stop string."""

    @property
    def stopped(self) -> bool:
        """Return whether a stop string was found."""
        return self._stop.stopped

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that was found."""
        return self._stop.found

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Add a token; return the text that may be shown after it.

        Without ``may_stop`` no stop string ends in this token, but one may begin in it.
        """
        text = self._detokenizer.push(token_id)
        self.characters += len(text)
        return self._stop.push(text, may_stop)

    def flush(self) -> str:
        """Return the rest of the text; a stop string in it still counts."""
        if self.stopped:
            return ""
        text = self._stop.push(self._detokenizer.flush())
        return text if self.stopped else text + self._stop.flush()
