"""Make the calls of a program's tasks, through the same decision service and relay as any client's.

The call of a task's first attempt is named by the task's id, later ones with a number, so that every
attempt is a call of its own in the run's graph and in the ledger.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.engine.wire.base import WorkerClient
from fairserve.engine.wire.tasks import CompletionPath
from fairserve.interactions.programs.program_task import Task, call_name
from fairserve.interactions.tracking.identity import CallIdentity
from fairserve.platform.base.request_facts import begin_request
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.relay import OnContent, Relay
from fairserve.platform.serving.completions.requests import (
    CHAT,
    TEXT,
    read_fields,
)
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.request import DeclaredWork
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.programs.repository import ProgramKey
from fairserve.platform.tenancy.auth import Principal


@dataclass(frozen=True, slots=True)
class ProgramOwner:
    """The owner and key of a program."""

    key: ProgramKey
    user: str

    @property
    def principal(self) -> Principal:
        """The principal of its calls: its app, without a key."""
        return Principal("app", self.key.tenant, self.key.app, key_id="", actor="program")


def path_of(request: Mapping[str, Any]) -> CompletionPath:
    """Return the endpoint for a request with these fields."""
    return CHAT if "messages" in request else TEXT


class TaskCalls:
    """Makes the calls of all programs."""

    def __init__(
        self,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
        on_content: OnContent | None = None,
    ) -> None:
        self._decisions = decisions
        self._workers = workers
        self._on_content = on_content

    async def make(self, owner: ProgramOwner, task: Task, parents: tuple[str, ...]) -> str:
        """Make the call of a task's attempt and return its output. Raises a FairServeError.

        ``parents`` are the names of calls. The output is the text of the answer, or if it has none, the
        tools that it requests, as JSON.
        """
        begin_request("")  # its log lines are not those of the request that started the program
        fields = {**task.request(), "user": owner.user}
        request = read_fields(path_of(fields), fields)
        identity = CallIdentity(
            owner.key.run_id,
            call_id=call_name(task.task_id, task.attempt),
            parents=parents,
            agent=task.agent,
        )
        declared = DeclaredWork(task.expected_output_tokens or 0, task.priority)
        checked = await self._decisions.check(
            request.call_request(owner.principal, identity=identity, declared=declared)
        )
        running = RunningCall(request, checked, None, time.monotonic())
        await Relay(
            running, self._decisions, self._workers.get, on_content=self._on_content
        ).carry()
        assert running.merger is not None, "what is not streamed is merged"
        return output_of(running.merger)


def output_of(merger: Merger) -> str:
    """Return the output of an answer with one choice, for the nodes that read it."""
    choices = merger.answer("", "", {})["choices"]
    if not choices:
        return ""
    choice = choices[0]
    if "text" in choice:
        return str(choice["text"])
    message = choice["message"]
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return json.dumps(message["tool_calls"], ensure_ascii=False)
    return content or ""
