"""The answer of an embedding or rerank call: the worker's object under the platform's id and name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairserve.engine.wire.base import MalformedAnswerError, WorkerChunk
from fairserve.platform.serving.completions.merge import Merger


class PoolingAnswer(Merger):
    """One JSON object, whose list ``field`` must have ``entries`` entries."""

    def __init__(
        self,
        field: str,
        entries: int,
        documents: Sequence[str] = (),
        return_documents: bool | None = None,
    ) -> None:
        """``return_documents`` adds each document to its result, or removes it; None: neither."""
        super().__init__()
        self._field, self._entries = field, entries
        self._documents, self._return_documents = documents, return_documents
        self._data: dict[str, Any] = {}

    def add(self, part: WorkerChunk) -> None:
        """Take the object. Raises MalformedAnswerError if it has another number of entries."""
        chunk = part.data
        found = len(chunk[self._field])
        if found != min(self._entries, len(self._documents) or self._entries):
            raise MalformedAnswerError(f"it sent {found} {self._field}, not {self._entries}")
        self._data = chunk

    def answer(self, answer_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole answer, whose usage has no output, as at OpenAI."""
        usage = {name: count for name, count in usage.items() if name != "completion_tokens"}
        answer = {**self._data, "id": answer_id, "model": model, "usage": usage}
        if self._return_documents is not None:
            answer[self._field] = [self._with_document(each) for each in answer[self._field]]
        return answer

    def _with_document(self, result: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in result.items() if name != "document"}
        if not self._return_documents:
            return rest
        return {**rest, "document": {"text": self._documents[result["index"]]}}
