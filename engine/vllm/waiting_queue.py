"""vLLM's queue of waiting requests, in the order of a local scheduler.

One ``schedule()`` of vLLM is one pass of the scheduler (scheduling/base.py). vLLM checks that the
queue is not empty, peeks, allocates, and pops; a request stays on offer until it is popped, since
allocation stores blocks that could change the order. The result of a pop is known only afterwards:
the request runs now, or holds blocks while its cache is fetched (accepted, with the cached tokens
that vLLM found), or vLLM skips it and prepends it at the end of the step (skipped). A request that
was peeked and not popped did not fit after all, and ends the pass.

Requests that cannot be admitted yet are kept apart and are not calls of the scheduler until they
are ready: those that wait for a grammar or for input, and preempted ones with pending outputs,
which vLLM delivers before it resumes them.

Cost per step: that of the scheduler's pass, plus O(1) per offer. A pass over W calls of which none
fits costs O(W) once, and is not repeated until a fitting call arrives, a missing block of one is
stored, or as many blocks are free as the smallest of them needs. Weakness: if small calls fit among
many large ones, each step costs O(W) until ``max_bypass`` is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

from fairserve.engine.vllm.block_view import BlockView
from fairserve.engine.vllm.callers import Callers
from fairserve.engine.vllm.room import BlockRoom
from fairserve.engine.vllm.surface import VllmRequest
from fairserve.scheduling.base import LocalCall, LocalScheduler


class WaitingQueue(RequestQueue):
    """Queue of one of vLLM's schedulers; ``local`` is ours. Not thread-safe, like vLLM's queues."""

    def __init__(self, scheduler: Any, local: LocalScheduler) -> None:
        self.local = local
        self._scheduler = scheduler
        self._members: dict[str, VllmRequest] = {}
        """Requests that are in this queue for vLLM."""
        self._apart: dict[str, VllmRequest] = {}
        """Members that are not ready."""
        self._runs: dict[str, bool] = {}
        """Calls of the local scheduler; True if accepted."""
        self._callers = Callers()
        self._view = BlockView(scheduler.kv_cache_manager, self._members)
        self._room = BlockRoom(scheduler, self._view)
        self._is_blocked: Callable[[Any], bool] = scheduler._is_blocked_waiting_status
        self._in_step = False
        self._begun = False
        """True once the pass of this step has begun."""
        self._over = False
        """True once the pass has ended."""
        self._offered: VllmRequest | None = None
        self._peeked = False
        self._popped: VllmRequest | None = None
        self._accepted = 0
        self._not_fitting = 0
        """Number of calls of this pass that did not fit."""
        self._least_blocks = 0
        """Number of free blocks below which none of them fits."""
        self._hopeless = False
        """True if no call fitted in the last pass, and no later change may help."""
        self._came: list[VllmRequest] = []
        """Calls that arrived since the last pass."""

    # --- one step of vLLM -------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin a step of vLLM; the pass begins when vLLM reads the queue."""
        self._in_step = True
        self._begun = self._over = False
        self._accepted = self._not_fitting = 0

    def settle(self) -> None:
        """Report the outcome of the last popped request to the scheduler."""
        request, self._popped = self._popped, None
        if request is None:
            return
        if request.status in (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS):
            self._runs[request.request_id] = True
            self._accepted += 1
            self._view.forget(request.request_id)
            self.local.accept(request.num_computed_tokens)
        else:
            self.local.skip()

    def end_step(self) -> None:
        """End the step."""
        self.settle()
        if self._offered is not None and self._peeked:
            self.local.skip()
        self._offered = None
        self._in_step = False
        fruitless = self._begun and self._over and not self._accepted
        if fruitless and self._not_fitting == len(self.local) > 0 and self._view.followed:
            self._hopeless = True
            self._view.watch()

    def decoded(self, request: VllmRequest, tokens: int) -> None:
        """Charge a running request for the tokens that it generated."""
        if self._runs.get(request.request_id):
            self.local.decoded(request.request_id, tokens)

    def finish(self, request: VllmRequest) -> None:
        """Remove a request that ended or was aborted, in any state."""
        request_id = request.request_id
        self._leave(request_id)
        self._view.forget(request_id)
        if self._runs.pop(request_id, None) is not None:
            self.local.finish(request_id)
        if request is self._offered:
            self._offered = None

    def surplus(self, request: VllmRequest) -> tuple[float, ...]:
        """Return the lead of a running request's client over the others."""
        if self._runs.get(request.request_id):
            return self.local.surplus(request.request_id)
        return ()

    # --- vLLM's queue interface -------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        """Add a new or returning request."""
        self._members[request.request_id] = request
        if self._is_ready(request):
            self._enter(request)
        else:
            self._apart[request.request_id] = request

    def prepend_request(self, request: VllmRequest) -> None:
        """Add a preempted request; the scheduler decides its place."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Re-add requests that vLLM skipped."""
        self.settle()
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> VllmRequest:
        """Return the request on offer. Raises IndexError if there is none."""
        request = self._offer() if self._in_step else next(iter(self._members.values()), None)
        if request is None:
            raise IndexError("peek from an empty queue")
        self._peeked = True
        return request

    def pop_request(self) -> VllmRequest:
        """Remove and return the request on offer. Raises IndexError if there is none."""
        request = self.peek_request()
        if self._in_step:
            self._popped, self._offered = request, None
        self._leave(request.request_id)
        return request

    def remove_request(self, request: VllmRequest) -> None:
        """Remove a request, if it is in the queue."""
        self._leave(request.request_id)

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Remove requests that are in the queue."""
        for request in requests:
            self._leave(request.request_id)

    def __bool__(self) -> bool:
        """Return whether a request waits or, within a step, is on offer."""
        return self._offer() is not None if self._in_step else bool(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[VllmRequest]:
        return iter(list(self._members.values()))

    # --- the pass ---------------------------------------------------------------------------------

    def _offer(self) -> VllmRequest | None:
        """Return the request on offer until it is popped; None when the pass is over."""
        self.settle()
        if self._offered is not None:
            return self._offered
        if not self._begun:
            self._begin_pass()
        if self._over or self._batch_is_full():
            return None
        local, members = self.local, self._members
        while (call := local.peek()) is not None:
            request = members.get(call.call_id)
            if request is not None and self._room.fits(request):
                self._offered, self._peeked = request, False
                return request
            if request is not None:
                self._refuse(request)
            local.skip()
        self._over = True
        return None

    def _begin_pass(self) -> None:
        self._begun = True
        for request in [each for each in self._apart.values() if self._is_ready(each)]:
            del self._apart[request.request_id]
            self._enter(request)
        if self._hopeless and self._stays_hopeless():
            self._over = True
            return
        self._hopeless = False
        self._came.clear()
        self.local.start_pass(self._view)

    def _stays_hopeless(self) -> bool:
        """Return whether no call fits, neither of the last pass nor newer ones."""
        room, view = self._room, self._view
        if view.grew or room.free_blocks() >= self._least_blocks:
            return False
        for request in self._came:
            if request.request_id in self._members:
                view.match_arrived(request)
                if room.fits(request):
                    return False
                self._least_blocks = min(self._least_blocks, room.least_blocks(request))
        self._came.clear()
        return True

    def _refuse(self, request: VllmRequest) -> None:
        least = self._room.least_blocks(request)
        self._least_blocks = min(self._least_blocks, least) if self._not_fitting else least
        self._not_fitting += 1

    def _batch_is_full(self) -> bool:
        scheduler = self._scheduler
        running: int = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        full: bool = running >= scheduler.max_num_active_reqs
        return full

    # --- members ----------------------------------------------------------------------------------

    def _is_ready(self, request: VllmRequest) -> bool:
        """Return whether the request could be admitted when it is next."""
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if not self._is_blocked(request.status):
            return True
        grammar = request.structured_output_request
        return (
            request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            and grammar is not None
            and grammar.grammar is not None
        )

    def _enter(self, request: VllmRequest) -> None:
        """Queue a ready request: a new call, a preempted one, or one that vLLM skipped."""
        request_id = request.request_id
        runs = self._runs.get(request_id)
        if runs:
            self.local.requeue(request_id)
        elif runs is None:
            caller = self._callers.of(request)
            self.local.add(
                LocalCall(
                    request_id,
                    caller.client_id,
                    request.num_prompt_tokens,
                    request.max_tokens,
                    weight=caller.weight,
                    expected_output_tokens=caller.expected_output_tokens,
                )
            )
        else:
            return
        self._runs[request_id] = False
        if self._hopeless:
            self._came.append(request)

    def _leave(self, request_id: str) -> None:
        self._members.pop(request_id, None)
        self._apart.pop(request_id, None)
