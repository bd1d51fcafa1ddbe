"""Turns a request to the demo model into the tokens of its answer."""

from __future__ import annotations

from collections.abc import Collection

from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.openai.request import GenerationRequest
from fairserve.engine.torch.response_formats import ResponseFormats
from fairserve.engine.torch.scripted.script import ScriptedAnswer, scripted_answer
from fairserve.engine.torch.scripted.scripted_output import ScriptedOutput


class ScriptedAnswers:
    """Answers of the demo model. Belongs to one event loop."""

    def __init__(self, vocabulary: int, end_ids: Collection[int], formats: ResponseFormats) -> None:
        self._vocabulary = vocabulary
        self._end_id = min(end_ids)
        self._formats = formats

    async def output(
        self, wanted: GenerationRequest, max_tokens: int
    ) -> tuple[ScriptedOutput, str]:
        """Return the output, and the name of the tool that it calls, which may be empty.

        Raises RequestError naming the field, and ChecksFullError if too many schemas wait.
        """
        answer = scripted_answer(wanted)
        _check(wanted, answer)
        grammar = await self._formats.grammar(answer.output_format, wanted.client_id)
        body = answer.body
        least = max_tokens if wanted.ignore_eos else wanted.min_tokens
        if body and least > len(body):
            body *= -(-least // len(body))
        is_json = answer.output_format is not None and answer.output_format.kind == "json"
        output = ScriptedOutput(
            answer.head, body, self._end_id, self._vocabulary, grammar, is_json=is_json
        )
        return output, answer.called


def _check(wanted: GenerationRequest, answer: ScriptedAnswer) -> None:
    """Raise RequestError for a field that would change the tokens of the script."""
    fields = ["allowed_token_ids", "bad_words"]
    if answer.called:
        fields += ["ignore_eos", "min_tokens"]
    elif wanted.min_tokens and wanted.stop_token_ids.intersection(answer.body or ()):
        fields += ["stop_token_ids"]  # none of them may come before min_tokens
    for field in fields:
        if getattr(wanted, field):
            raise RequestError(
                f"this worker cannot honour {field}"
                + (" in an answer that calls a tool" if answer.called else "")
                + ": the demo model follows a script; leave it out",
                field,
                "unsupported_parameter",
            )
