"""The text of one output as it grows: detokenised, and cut at the first stop string."""

from __future__ import annotations

from fairserve.engine.torch.detokenizer import Detokenizer
from fairserve.engine.torch.stop_strings import StopStrings


class OutputText:
    """Feed output tokens with ``push``, and call ``flush`` once at the end."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stop.stopped

    def push(self, token_id: int) -> str:
        """The text that may be shown after one more token."""
        return self._stop.push(self._detokenizer.push(token_id))

    def flush(self) -> str:
        """The rest of the text; may still find a stop string in it."""
        if self.stopped:
            return ""
        text = self._stop.push(self._detokenizer.flush())
        return text if self.stopped else text + self._stop.flush()
