"""DLPM inside vLLM: its schedulers, with waiting requests in the order of a local scheduler.

    vllm serve MODEL --scheduler-cls fairserve.engine.vllm.scheduler.DLPMAsyncScheduler

``DLPMAsyncScheduler`` is for servers that schedule ahead of the device, vLLM's default on GPUs;
``DLPMScheduler`` is for the others. The local scheduler, its options and the victims of preemption
are set in the environment (:mod:`fairserve.engine.vllm.settings`); the client of a request is read
from ``vllm_xargs`` (:mod:`fairserve.engine.vllm.callers`).

DLPM paper, Algorithm 1, run by the same object as in the embedded engine
(:mod:`fairserve.scheduling.local.dlpm`). Its lines here: the walk (14-25) is one ``schedule()`` of
vLLM, through its queue (:mod:`fairserve.engine.vllm.waiting_queue`), and
:mod:`fairserve.engine.vllm.room` checks which calls can be added; the extend tokens of 26-29 are
the prompt less the tokens that vLLM found cached on admission; 30-33 charge each token that a
request really generated, when its output arrives. So rejected drafts, placeholders of running steps
and tokens computed again after a preemption are never charged.

vLLM does not reserve outputs; it preempts ``running[-1]`` when blocks run short. With
``victim=fair`` the running requests are sorted by their clients' surplus in such a step, the one
furthest over its share last. The deficits are then bounded by ``we * Linput`` plus
``wq * running requests * max_tokens`` in place of ``wq * M``.

Cost per step: that of the queue; O(1) per running request for its tokens; O(running) while blocks
are short, O(running * log running) when they may run out. Weaknesses: those of the queue, of the
room and of the view; later inputs of a streaming-input request are not charged, their outputs are;
``--scheduling-policy priority`` is rejected, since vLLM would then preempt by priority.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler

from fairserve.engine.local_scheduler import make_local_scheduler
from fairserve.engine.vllm.settings import read_settings
from fairserve.engine.vllm.surface import VllmRequest, check_surface
from fairserve.engine.vllm.victims import may_run_short
from fairserve.engine.vllm.waiting_queue import WaitingQueue

logger = logging.getLogger("vllm.fairserve")


class _LocalSchedulerMixin:
    """Mixin for one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = read_settings(os.environ)
        local = make_local_scheduler(settings.local_scheduler, settings.options)
        super().__init__(*args, **kwargs)
        check_surface(self)
        vllm: Any = self
        if vllm.policy != SchedulingPolicy.FCFS:
            raise ValueError(
                f"--scheduling-policy is {vllm.policy.value!r}; allowed with this scheduler: 'fcfs'"
            )
        self._check_mode()
        self.waiting = WaitingQueue(self, local)
        self._fair_victim = settings.victim == "fair"
        options = getattr(local, "options", None)
        logger.info(
            "Waiting requests are in the order of %s (%s), victim=%s.",
            settings.local_scheduler,
            dataclasses.asdict(options) if options is not None else "no options",
            settings.victim,
        )

    def _check_mode(self) -> None:
        """Raise ValueError unless the class fits the server's mode, which vLLM does not check."""
        vllm: Any = self
        ahead = bool(vllm.scheduler_config.async_scheduling)
        if ahead and not isinstance(self, AsyncScheduler):
            logger.warning(
                "This server schedules ahead of its device, which DLPMScheduler cannot: "
                "DLPMAsyncScheduler is faster."
            )
        elif not ahead and isinstance(self, AsyncScheduler) and vllm.num_spec_tokens:
            raise ValueError(
                "this server does not schedule ahead of its device; allowed then with "
                "speculative decoding: DLPMScheduler"
            )

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step of vLLM, which is one pass of the local scheduler."""
        vllm: Any = self
        if self._fair_victim and len(vllm.running) > 1 and may_run_short(vllm):
            vllm.running.sort(key=self.waiting.surplus)
        self.waiting.begin_step()
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.waiting.end_step()

    def _update_after_schedule(self, *args: Any, **kwargs: Any) -> None:
        """Read the cached tokens of the last admission, before vLLM counts the step as computed."""
        self.waiting.settle()
        super()._update_after_schedule(*args, **kwargs)  # type: ignore[misc]

    def _update_request_with_output(
        self, request: VllmRequest, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        """Charge the kept tokens; tokens after a stop are cut off here."""
        kept: list[int]
        kept, stopped = super()._update_request_with_output(  # type: ignore[misc]
            request, new_token_ids, *args, **kwargs
        )
        if kept:
            self.waiting.decoded(request, len(kept))
        return kept, stopped

    def _free_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> Any:
        """Remove a request that ended or was aborted."""
        self.waiting.finish(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class DLPMScheduler(_LocalSchedulerMixin, Scheduler):
    """vLLM's scheduler, with DLPM or another local scheduler by name."""


class DLPMAsyncScheduler(_LocalSchedulerMixin, AsyncScheduler):
    """The same for servers that schedule a step before the outputs of the last one are known."""
