"""One run of an agent program: its calls through the ``openai`` client, and their measurements.

A program makes calls through :meth:`AgentRun.ask`. The first rejection ends the run: its parallel
calls are cancelled and the interaction is cancelled at the server, as by an agent that cannot
continue. Nothing is retried. Times are the client's monotonic clock; usage is as reported by the
server.

Weakness: a call that is cut off has reported no usage yet, so its tokens are missing here (the
ledger has them).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import openai
from openai import AsyncOpenAI

from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.workload import PlannedRun
from fairserve.interactions.call import NO_USAGE, TokenUsage
from fairserve.scheduling.events import CallOutcome
from fairserve.scheduling.metrics import CallSample, RunSample

AgentProgram = Callable[["AgentRun"], Awaitable[None]]
Message = dict[str, str]

TEMPERATURE = 0.8
CLEANUP_S = 10.0
"""Maximum seconds for the cancellation of a run."""
CLEANUP_PAUSE_S = 1.0
"""Pause after a 429: a key has a bounded number of such requests in progress."""


class RunRefusedError(Exception):
    """A call of the run was answered with 429."""


class CallFailedError(Exception):
    """A call of the run was answered with an error other than a rejection."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Text of a call, and the id by which later calls name it as their parent."""

    call_id: str
    text: str


@dataclass(slots=True)
class _Watch:
    """State of a call in progress."""

    arrival_s: float
    outcome: CallOutcome = "cancelled"
    queue_delay_s: float | None = None
    first_token_s: float | None = None
    usage: TokenUsage = NO_USAGE
    mid_run: bool = False


@dataclass(slots=True)
class AgentRun:
    """An active run. ``client`` uses the app's key."""

    client: AsyncOpenAI
    model: str
    plan: PlannedRun
    recorder: Recorder
    random: Random = field(init=False)
    """Random choices of the program; equal under every system."""
    _calls: int = 0
    _accepted: bool = False
    _tokens: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.plan.seed)  # noqa: S311  a choice of words is no secret

    async def execute(self, program: AgentProgram) -> None:
        """Run the program to its end in any state, and record it. Cancellation is propagated."""
        start_s = time.monotonic()
        cause = "cancelled"
        self.recorder.run_started(self.plan)
        try:
            await program(self)
            cause = ""
        except* RunRefusedError:
            cause = "throttled"
        except* CallFailedError:
            cause = "failed"
        finally:
            end_s = time.monotonic()
            if cause:
                await self._give_up()
            sample = RunSample(
                client=self.plan.client,
                interaction_id=self.plan.run_id,
                start_s=start_s,
                end_s=end_s,
                complete=not cause,
                wasted_tokens=self._tokens if cause else 0,
                cause=cause,
                group=self.plan.group,
            )
            self.recorder.run_ended(self.plan, sample)

    async def ask(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        parents: Sequence[Answer] = (),
        stream: bool,
        final: bool = False,
    ) -> Answer:
        """Make one call of the run. Raises RunRefusedError or CallFailedError."""
        number = self._calls
        self._calls += 1
        call_id = f"{self.plan.run_id}.{number}"
        headers = {
            "X-Interaction-Id": self.plan.run_id,
            "X-Agent": agent,
            "X-Call-Id": call_id,
            "X-Parent-Ids": ",".join(parent.call_id for parent in parents),
        }
        if final:
            headers["X-Interaction-Final"] = "true"
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": TEMPERATURE,
            "seed": (self.plan.seed + number) % 2**31,
            "user": self.plan.user,
            "extra_headers": headers,
        }
        watch = _Watch(arrival_s=time.monotonic())
        self.recorder.call_started(self.plan)
        try:
            text = await (self._streamed if stream else self._whole)(request, watch)
            watch.outcome = "completed"
        except openai.RateLimitError as error:
            watch.outcome, watch.mid_run = "refused", self._accepted
            raise RunRefusedError(f"{call_id}: {error}") from error
        except openai.APIError as error:
            watch.outcome = "failed"
            self.recorder.fail(f"call {call_id} ({agent}): {type(error).__name__}: {error}")
            raise CallFailedError(call_id) from error
        finally:
            self._record(watch)
        self._accepted = True
        self._tokens += watch.usage.prompt_tokens + watch.usage.output_tokens
        return Answer(call_id, text)

    async def together(self, calls: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
        """Make calls in parallel; the first rejection or failure ends the others."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
        return [task.result() for task in tasks]

    async def work(self, least_s: float = 0.05, most_s: float = 0.25) -> None:
        """Simulate work between two calls (a search, a tool): wait for a moment."""
        await asyncio.sleep(self.random.uniform(least_s, most_s))

    def about(self, tokens: int) -> int:
        """Return an output length near the typical one, drawn from the program's random choices."""
        return round(tokens * self.random.uniform(0.6, 1.4))

    # --- one call ---------------------------------------------------------------------------------

    async def _whole(self, request: dict[str, Any], watch: _Watch) -> str:
        raw = await self.client.chat.completions.with_raw_response.create(**request)
        _read_headers(raw.headers, watch)
        completion = raw.parse()
        watch.usage = _usage(completion.usage)
        return completion.choices[0].message.content or ""

    async def _streamed(self, request: dict[str, Any], watch: _Watch) -> str:
        raw = await self.client.chat.completions.with_raw_response.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        _read_headers(raw.headers, watch)
        self._accepted = True
        parts: list[str] = []
        async with raw.parse() as chunks:
            async for chunk in chunks:
                now_s = time.monotonic()
                if chunk.usage is not None:
                    watch.usage = _usage(chunk.usage)
                if chunk.choices and chunk.choices[0].delta.content:
                    if watch.first_token_s is None:
                        watch.first_token_s = now_s
                    parts.append(chunk.choices[0].delta.content)
        return "".join(parts)

    def _record(self, watch: _Watch) -> None:
        sample = CallSample(
            client=self.plan.client,
            interaction_id=self.plan.run_id,
            arrival_s=watch.arrival_s,
            end_s=time.monotonic(),
            outcome=watch.outcome,
            usage=watch.usage,
            queue_delay_s=watch.queue_delay_s,
            first_token_s=watch.first_token_s,
            mid_run=watch.mid_run,
            group=self.plan.group,
        )
        self.recorder.call_ended(self.plan, sample)

    async def _give_up(self) -> None:
        """Cancel the interaction at the server; one that was never opened, or has ended, is no error."""
        try:
            async with asyncio.timeout(CLEANUP_S):
                while await self._is_turned_away():  # noqa: ASYNC110  the server sends no event
                    await asyncio.sleep(CLEANUP_PAUSE_S)
        except (openai.APIError, TimeoutError) as error:
            self.recorder.fail(f"run {self.plan.run_id} could not be cancelled: {error}")

    async def _is_turned_away(self) -> bool:
        """Try to cancel the interaction; return whether too many others are being cancelled."""
        try:
            await self.client.delete(f"/interactions/{self.plan.run_id}", cast_to=object)
        except openai.RateLimitError:
            return True
        except (openai.NotFoundError, openai.ConflictError):
            pass
        return False


def _read_headers(headers: Any, watch: _Watch) -> None:
    queued_ms = headers.get("x-fairserve-queue-ms")
    if queued_ms is not None:
        watch.queue_delay_s = float(queued_ms) / 1000


def _usage(usage: Any) -> TokenUsage:
    if usage is None:
        raise openai.OpenAIError("the answer has no usage")
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    return TokenUsage(usage.prompt_tokens, 0, cached, usage.completion_tokens)
