"""The growing text of one output, detokenised and cut at the first stop string."""

from __future__ import annotations

from fairserve.engine.torch.detokenizer import Detokenizer


class StopStrings:
    """Filter of one text. Call ``push`` with its pieces until ``stopped`` is true."""

    def __init__(self, stop: tuple[str, ...], *, included: bool = False) -> None:
        """If ``included``, the text ends after the stop string, else before it."""
        self._stop = stop
        self._included = included
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def stopped(self) -> bool:
        """Return whether a stop string was found."""
        return self.found is not None

    def push(self, text: str, may_stop: bool = True) -> str:
        """Add text; return the part that may be shown, which ends at the first stop string.

        Without ``may_stop`` no stop string ends in this text, but one may begin in it.
        """
        if not self._stop:
            return text
        if not text:
            return ""
        held = self._held + text
        if may_stop:
            # The held text has no whole stop string, or one that did not count.
            old = len(self._held)
            ends = [(held.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stop]
            found = [end for end in ends if end[0] >= 0]
            if found:
                at, self.found = min(found)
                self._held = ""
                return held[: at + len(self.found)] if self._included else held[:at]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """End the output and return the held text, which contains no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Return the length of the longest suffix of ``text`` with which a stop string begins."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


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
