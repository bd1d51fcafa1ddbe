"""Read the bytes of a streamed answer as events, without a connection.

The answer is complete when ``[DONE]`` follows a ``finish_reason`` for every choice that was begun; a
plain OpenAI server may end it without ``[DONE]``. Some servers end the stream normally after they
aborted a call: that is a broken answer, not a short one. A server that ignores ``stream`` sends one
object: it is the only chunk.

The running counts of vLLM are those of the chunk's sample. They are replaced by those of all samples, so
that a client that leaves before the end has used what all samples have generated.
"""

from __future__ import annotations

from typing import Any

from fairserve.engine.wire.answer_shape import AnswerShape, as_chunk
from fairserve.engine.wire.base import MalformedAnswerError, WorkerChunk, WorkerStreamError
from fairserve.engine.wire.event_form import EventForm, form_of
from fairserve.engine.wire.reported_error import error_object, reported
from fairserve.engine.wire.reported_usage import count_of
from fairserve.engine.wire.worker_json import parse_object

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Maximum size of a single event, which is held in memory; a longer one breaks the answer."""
MAX_FORMS = 16
"""Events of a stream from which its form is learned: the forms of some streams never repeat."""
_BOM = b"\xef\xbb\xbf"
"""The byte order mark, which may precede the first line."""


class StreamEvents:
    """Events of one answer. O(bytes); holds the tail of an event that is split over chunks."""

    def __init__(self, shape: AnswerShape, most_of_sample: int | None = None) -> None:
        """``shape`` checks the chunks.

        ``most_of_sample``: the largest output of a sample, if running counts are those of one sample.
        """
        self._tail = bytearray()
        self._shape = shape
        self._is_object: bool | None = None
        """True if the answer is one object; None while nothing has arrived."""
        self._at_start = True
        self._form: EventForm | None = None
        self._forms_left = MAX_FORMS
        self._most_of_sample = most_of_sample
        self._counts: dict[int, int] = {}
        """Largest usable count of each sample, if they are reported apart."""
        self._output_tokens = 0
        """Their sum."""

    def feed(self, received: bytes) -> list[bytes]:
        """Return the contents of the events that are whole now.

        Raises MalformedAnswerError for an event that is too long.
        """
        if self._is_object is None and (start := received.lstrip(_BOM + b" \t\r\n")):
            self._is_object = start.startswith(b"{")
        *lines, rest = (received,) if self._is_object else received.split(b"\n")
        if lines:
            lines[0] = bytes(self._tail) + lines[0]
            self._tail.clear()
            if self._at_start:
                lines[0] = lines[0].removeprefix(_BOM)
                self._at_start = False
        self._tail += rest
        if len(self._tail) > MAX_EVENT_BYTES:
            raise MalformedAnswerError(f"it sent an event over {MAX_EVENT_BYTES} bytes")
        # One line is one event here: the dialect never splits JSON over several data lines. Comments
        # and lines without data (keep-alive), and other fields, are skipped.
        return [data for line in lines if line.startswith(b"data:") and (data := line[5:].strip())]

    def flush(self) -> list[bytes]:
        """Return the content of a last event without a line end, once the answer has ended."""
        if not self._is_object:
            return self.feed(b"\n")
        found = [bytes(self._tail)] if self._tail else []
        self._tail.clear()
        return found

    def is_complete(self, *, needs_done: bool) -> bool:
        """Return whether an answer that has ended without ``[DONE]`` is complete."""
        return self._shape.is_complete and (bool(self._is_object) or not needs_done)

    def read(self, event: bytes) -> WorkerChunk | None:
        """Return the checked chunk of an event; None for the end of a complete answer.

        Raises WorkerStreamError, or WorkerRejectedError for an error that rejects the request itself,
        with the worker's own texts.
        """
        if self._form is not None and (found := self._form.match(event)) is not None:
            text, count = found
            return WorkerChunk(None, self._form, text, self._of_all(self._form.index, count))
        if event == b"[DONE]":
            if not self._shape.is_complete:
                raise WorkerStreamError("it ended without a finish_reason")
            return None
        chunk = parse_object(event, "an event")
        raise_reported(chunk)
        if self._is_object:
            self._shape.check_whole(chunk)
            return WorkerChunk(as_chunk(chunk))
        self._shape.check_chunk(chunk)
        if self._forms_left:
            self._form = form_of(event, chunk) or self._form
            self._forms_left -= 1
        self._count_all(chunk)
        return WorkerChunk(chunk)

    def _of_all(self, sample: int, count: int | None) -> int | None:
        """Return the count of all samples for that of one; one that is not usable remains. O(1)."""
        if self._most_of_sample is None or count is None:
            return count
        if count_of(count, self._most_of_sample) is None:
            return count
        more = count - self._counts.get(sample, 0)
        if more > 0:
            self._counts[sample] = count
            self._output_tokens += more
        return self._output_tokens

    def _count_all(self, chunk: dict[str, Any]) -> None:
        """Replace the count of a chunk's sample by that of all; the last chunk has no sample."""
        usage, choices = chunk.get("usage"), chunk["choices"]
        if self._most_of_sample is None or len(choices) != 1 or not isinstance(usage, dict):
            return
        own, total = usage.get("completion_tokens"), usage.get("total_tokens")
        output = self._of_all(choices[0]["index"], own)
        if own is None or output is None or output == own:
            return
        more = {"completion_tokens": output}
        if type(total) is int:
            more["total_tokens"] = total + output - own
        chunk["usage"] = usage | more


def raise_reported(answer: dict[str, Any]) -> None:
    """Raise the error that a worker sent in place of an answer, if it is one."""
    wrapped = answer.get("error")
    if not wrapped and ("choices" in answer or not isinstance(answer.get("message"), str)):
        return
    error = error_object(answer)
    if error is None:
        raise MalformedAnswerError("it reported an error without a message")
    raise reported(error)
