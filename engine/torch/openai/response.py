"""Writes responses in OpenAI's formats, streamed and whole, for chat and for completions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

from fairserve.engine.torch.events import FinishReason, Generated
from fairserve.engine.torch.logprobs import TokenLogprobs
from fairserve.engine.torch.openai.logprobs import chat_logprobs, completion_logprobs
from fairserve.engine.torch.openai.request import Kind
from fairserve.engine.torch.token_texts import TokenTexts


@dataclass(slots=True)
class SampleOutput:
    """The output of one sample so far."""

    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of every token, if requested."""
    characters: int = 0
    """Characters of all parts."""
    tokens: int = 0
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswerWriter:
    """Builds the JSON values of one call's response.

    ``cached_tokens`` of the usage is that of the first sample: only its prompt is counted, although
    every sample has computed or reused it.
    """

    kind: Kind
    answer_id: str
    created: int
    """Unix time in seconds."""
    model: str
    prompt_tokens: int
    outputs: list[SampleOutput]
    texts: TokenTexts | None = None
    """Texts of tokens; None unless log probabilities were requested."""
    called: str = ""
    """Name of the tool that the answer calls: the first characters of its text, which its arguments
    follow. Empty: none."""

    def usage(self) -> dict[str, Any]:
        """Return the usage so far, over all samples."""
        generated = sum(output.tokens for output in self.outputs)
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": self.outputs[0].cached_tokens},
        }

    def admitted(self, index: int, usage: bool) -> dict[str, Any]:
        """Return the chunk of a sample that left the queue: chat's role, or an empty text."""
        if self.kind == "chat":
            choice = self._delta(index, {"role": "assistant", "content": ""}, None, None)
        else:
            choice = self._text(index, "", None, None)
        return self._chunk([choice], usage)

    def delta(self, index: int, event: Generated, usage: bool) -> dict[str, Any]:
        """Return a chunk with more output of a sample."""
        logprobs = self._logprobs([] if event.logprobs is None else [event.logprobs])
        if self.kind == "chat":
            delta = self._call_delta(index, event) if self.called else {"content": event.text}
            reason = self._reason(event.finish_reason, event.stop_reason)
            choice = self._delta(index, delta, logprobs, reason)
        else:
            choice = self._text(index, event.text, logprobs, event.finish_reason)
        return self._chunk([choice | _stop_reason(event.stop_reason)], usage)

    def final_usage(self) -> dict[str, Any]:
        """Return the last chunk for ``include_usage``, which has no choices."""
        return self._chunk([], True)

    def whole(self) -> dict[str, Any]:
        """Return the response to a call that is not streamed."""
        choices = []
        for index, output in enumerate(self.outputs):
            text = "".join(output.parts)
            logprobs = self._logprobs(output.logprobs)
            if self.kind == "chat":
                choice: dict[str, Any] = {
                    "index": index,
                    "message": {"role": "assistant", **self._message(index, text)},
                    "logprobs": logprobs,
                    "finish_reason": self._reason(output.finish_reason, output.stop_reason),
                }
            else:
                choice = self._text(index, text, logprobs, output.finish_reason)
            choices.append(choice | _stop_reason(output.stop_reason))
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return self._head(name) | {"choices": choices, "usage": self.usage()}

    def _message(self, index: int, text: str) -> dict[str, Any]:
        """Return the content of a message, or its call of a tool."""
        if not self.called:
            return {"content": text}
        if len(text) < len(self.called):  # cut within the name
            return {"content": None}
        return {"content": None, "tool_calls": [self._call(index, text[len(self.called) :])]}

    def _call_delta(self, index: int, event: Generated) -> dict[str, Any]:
        """Return the part of a call of a tool; the first one, with its name, when that is complete."""
        end, name = self.outputs[index].characters, len(self.called)
        start = end - len(event.text)
        if end < name or not event.text:
            return {}
        arguments = event.text[max(0, name - start) :]
        if start < name:
            return {"tool_calls": [{"index": 0, **self._call(index, arguments)}]}
        return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}

    def _call(self, index: int, arguments: str) -> dict[str, Any]:
        digest = hashlib.sha256(f"{self.answer_id}/{index}".encode()).hexdigest()
        return {
            "id": f"call_{digest[:24]}",
            "type": "function",
            "function": {"name": self.called, "arguments": arguments},
        }

    def _reason(
        self, reason: FinishReason | None, stop_reason: int | str | None
    ) -> FinishReason | Literal["tool_calls"] | None:
        """Return the reason of the end; a call that ended by itself has one of its own."""
        return "tool_calls" if self.called and reason == "stop" and stop_reason is None else reason

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": name,
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, choices: list[dict[str, Any]], usage: bool) -> dict[str, Any]:
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        chunk = self._head(name) | {"choices": choices}
        return chunk | {"usage": self.usage()} if usage else chunk

    def _logprobs(self, tokens: list[TokenLogprobs]) -> dict[str, Any] | None:
        if self.texts is None or not tokens:
            return None
        if self.kind == "chat":
            return chat_logprobs(tokens, self.texts)
        return completion_logprobs(tokens, self.texts)

    @staticmethod
    def _delta(
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        finish_reason: str | None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    @staticmethod
    def _text(
        index: int,
        text: str,
        logprobs: dict[str, Any] | None,
        finish_reason: FinishReason | None,
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _stop_reason(reason: int | str | None) -> dict[str, int | str]:
    """Return vLLM's field of a choice that a stop token or a stop string of the request ended."""
    return {} if reason is None else {"stop_reason": reason}
